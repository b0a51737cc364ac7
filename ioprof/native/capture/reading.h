/* A read of a regular file while it goes on, and its end: counted, decided upon (source.h) and
 * recorded as spans. */
#ifndef IOPROF_READING_H
#define IOPROF_READING_H

#include "events.h"
#include "open_files.h"

struct reading {
    struct open_file *file;
    int64_t position, start, middle; /* middle: when the call with RWF_NOWAIT had returned */
    int64_t nowait_bytes;            /* that it returned */
    struct usage before, between, after;
    bool has_usage;     /* whether the counters were read */
    bool nowait_missed; /* whether the call with RWF_NOWAIT was made and did not return all */
    bool stale_before;  /* and the counters had not been read before it */
    bool is_uncounted;  /* by the kernel, and so not in the tallies either */
};

#pragma GCC visibility push(hidden)

/* Reads the counters before the read, if they can say anything of it. */
void read_usage_before(struct reading *reading);

/* The same after a call with RWF_NOWAIT that missed unexpectedly: it submitted what the thread has
 * submitted since the last look. */
void read_usage_late(struct reading *reading, int64_t wanted);

/* Reads the counters after the read, if they were read before it or it was slow. `got` is its
 * result. */
void read_usage_after(struct reading *reading, int64_t duration, int64_t got);

/* Everything after a read; `got` is its result. errno is left as the read left it. */
void end_reading(const struct reading *reading, int64_t got, int64_t end);

/* A read by sendfile, stdio and the like: of a regular file, from `offset` or AT_POSITION; false:
 * the descriptor is none. */
bool begin_other_reading(int descriptor, int64_t offset, struct reading *reading);
void end_other_reading(struct reading *reading, int64_t got);

/* A call that may have the kernel read ahead: the file, or NULL where the counters say nothing of
 * it. */
struct open_file *begin_readahead(int descriptor);
void end_readahead(struct open_file *file, int64_t offset);

/* Records the bytes of a read whose facts are complete but for those that the file knows. */
void emit_sources(struct open_file *file, int64_t start, int64_t middle, int64_t end,
                  int64_t position, struct read_facts *facts);

/* A read that returned no bytes, or failed. */
void emit_empty_read(struct open_file *file, int64_t start, int64_t end, int64_t position);

#pragma GCC visibility pop

/* Whether no bytes are expected there, and so nothing that would have to be fetched. */
static inline bool is_behind_end(const struct open_file *file, int64_t position)
{
    int64_t size = GET(file, size);
    return size >= 0 && position >= size;
}

static inline bool has_usable_counters(struct open_file *file)
{
    return counters_apply(accounting_of(GET(file, system)), flags_of(file) & FILE_DIRECT);
}

static inline void emit_read(struct open_file *file, int64_t start, int64_t end, int64_t offset,
                             int64_t bytes, enum ioprof_source source)
{
    if (bytes > 0)
        emit_event(
            &(struct event){start, end, bytes, offset, GET(file, path), -1, KIND_READ, source});
}

/* A read that is counted but has no span. */
static inline void count_read(int64_t bytes)
{
    guard_enter();
    tally_read(bytes > 0 ? (uint64_t)bytes : 0);
    guard_leave();
}

#endif
