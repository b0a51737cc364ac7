/* Spans and tallies of the capture library. All under the reentrancy guard. */
#ifndef IOPROF_EVENTS_H
#define IOPROF_EVENTS_H

#include "process.h"

/* `path`, `name`: numbers of strings; -1: none. */
struct event {
    int64_t start_ns, end_ns, bytes, offset;
    int32_t path, name;
    enum ioprof_kind kind;
    enum ioprof_source source;
};

static inline void emit_event(const struct event *event)
{
    struct ioprof_record *record = ring_reserve(&ring, &writer, 1);
    if (record == NULL)
        return;
    *record = (struct ioprof_record){.start_ns = event->start_ns,
                                     .end_ns = event->end_ns,
                                     .bytes = event->bytes,
                                     .offset = event->offset,
                                     .batch = -1,
                                     .step = -1,
                                     .file = event->path,
                                     .name = event->name,
                                     .stream = -1,
                                     .kind = (uint8_t)event->kind,
                                     .source = (uint8_t)event->source};
    ring_publish(&writer, 1);
}

static inline void tally_read(uint64_t bytes)
{
    struct ioprof_chunk *tallies = ring_tallies(&ring, &writer);
    if (tallies == NULL)
        return;
    ring_add(&tallies->calls, 1);
    ring_add(&tallies->bytes, bytes);
}

/* Bytes that the kernel fetched from storage during a call of this thread, those ahead of what the
 * call returned included. */
static inline void tally_fetched(int64_t bytes)
{
    struct ioprof_chunk *tallies = bytes > 0 ? ring_tallies(&ring, &writer) : NULL;
    if (tallies != NULL)
        ring_add(&tallies->fetched_bytes, (uint64_t)bytes);
}

static inline void tally_short_call(int64_t duration_ns)
{
    struct ioprof_chunk *tallies = ring_tallies(&ring, &writer);
    if (tallies == NULL)
        return;
    ring_add(&tallies->short_calls, 1);
    ring_add(&tallies->short_ns, (uint64_t)duration_ns);
}

#endif
