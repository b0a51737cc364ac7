#include "receiving.h"

#include "io_counters.h"
#include "peers.h"
#include "received_files.h"
#include "short_calls.h"

#include <errno.h>

#define NUM_RECEIVERS 4096
#define NUM_HELD 12        /* receipts that are kept until it is decided whether they are data */
#define SMALL_RECEIPT 4096 /* a receipt of fewer bytes that did not wait has no span of its own */
#define MAX_ATTEMPTS 64
#define ADJACENT_NS 50000 /* a receipt so soon after a wait is one span with it */

struct receipt {
    int64_t start, end, bytes;
};

/* What is known of a socket or pipe, by its descriptor. `next` of its open_file is the serial
 * number of the entry that is its own: two descriptors with one place take it from each other. */
struct receiver {
    _Atomic uint32_t holder;
    int64_t serial;
    struct peer peer;
    struct volume volume;
    int64_t carried; /* bytes of small receipts, which the next span includes */
    int num_held;
    struct receipt held[NUM_HELD];
};

__thread struct poll_wait last_poll;
static table_pages receivers; /* NUM_RECEIVERS */
static _Atomic int64_t last_serial;

/* NULL: there is no room for the table. */
static struct receiver *receiver_of(int descriptor)
{
    struct receiver *table = map_table(&receivers, NUM_RECEIVERS * sizeof *table);
    return table == NULL ? NULL : &table[descriptor % NUM_RECEIVERS];
}

static bool take_receiver(struct receiver *receiver)
{
    for (int attempt = 0; receiver != NULL && attempt < MAX_ATTEMPTS; attempt++)
        if (try_lock(&receiver->holder))
            return true;
    return false;
}

static void reset_receiver(struct receiver *receiver, struct open_file *file)
{
    int64_t serial = atomic_fetch_add(&last_serial, 1) + 1;
    receiver->serial = serial;
    receiver->peer = (struct peer){PEER_UNDECIDED, -1};
    receiver->volume = (struct volume){0, 0};
    receiver->carried = 0;
    receiver->num_held = 0;
    SET(file, next, serial);
}

/* --------------------------------------------------------------------------------------- spans */

static void emit_receipt(const struct receiver *receiver, const struct open_file *file,
                         const struct receipt *receipt)
{
    enum ioprof_source source = flags_of(file) & FILE_SOCKET ? SOURCE_SOCKET : SOURCE_PIPE;
    emit_event(&(struct event){receipt->start, receipt->end, receipt->bytes, -1,
                               receiver->peer.name, -1, KIND_READ, source});
}

static void emit_data(struct receiver *receiver, const struct open_file *file,
                      struct receipt receipt)
{
    bool is_short = receipt.end - receipt.start < SLOW_CALL_NS;
    if (is_short && receipt.bytes < SMALL_RECEIPT) {
        receiver->carried += receipt.bytes;
        return;
    }
    receipt.bytes += receiver->carried;
    receiver->carried = 0;
    emit_receipt(receiver, file, &receipt);
}

/* The last place takes the bytes of what finds no room, but not its time. */
static void hold(struct receiver *receiver, struct receipt receipt)
{
    if (receiver->num_held < NUM_HELD)
        receiver->held[receiver->num_held++] = receipt;
    else
        receiver->held[NUM_HELD - 1].bytes += receipt.bytes;
}

static void emit_held(struct receiver *receiver, const struct open_file *file)
{
    for (int place = 0; place < receiver->num_held; place++) {
        emit_data(receiver, file, receiver->held[place]);
        if (flags_of(file) & FILE_SOCKET)
            count_received(receiver->peer.name, receiver->held[place].bytes);
    }
    receiver->num_held = 0;
}

/* One thread at a time searches other processes (processes.h); another one decides at its next
 * receipt. */
static void judge(struct receiver *receiver, int descriptor, const struct open_file *file,
                  int64_t got, const void *caller)
{
    static _Atomic uint32_t holder;
    receiver->volume.calls++;
    receiver->volume.bytes += (uint64_t)got;
    if (!try_lock(&holder))
        return;
    receiver->peer = flags_of(file) & FILE_SOCKET
                         ? judge_socket(descriptor, caller, got, &receiver->volume)
                         : judge_pipe(descriptor, &receiver->volume);
    unlock(&holder);
}

/* One receipt as one span, or as two where the program did other work between its wait and the
 * receipt. */
static void add_receipt(struct receiver *receiver, const struct open_file *file,
                        struct receipt receipt, const struct poll_wait *poll)
{
    struct receipt waited = {poll->start, poll->end, receipt.bytes};
    bool has_waited = poll->result > 0 && receipt.start >= poll->end;
    if (has_waited && receipt.start - poll->end < ADJACENT_NS)
        receipt.start = poll->start;
    bool is_apart = has_waited && receipt.start != poll->start;
    if (is_apart)
        receipt.bytes = 0;
    for (int part = is_apart ? 0 : 1; part < 2; part++) {
        struct receipt each = part == 0 ? waited : receipt;
        if (receiver->peer.verdict == PEER_UNDECIDED)
            hold(receiver, each);
        else if (part == 0 || each.bytes > 0 || each.end - each.start >= SLOW_CALL_NS)
            emit_data(receiver, file, each);
    }
}

/* ------------------------------------------------------------------------------ from the hooks */

/* When the thread waited for a receipt: in poll and its like before it, or in the call itself,
 * which may also only have copied. */
static struct receipt_wait wait_of(const struct receiving *receiving, const struct poll_wait *poll,
                                   int64_t end, bool was_out)
{
    bool has_polled = poll->result > 0 && receiving->start >= poll->end &&
                      poll->end - poll->start >= LEAST_BLOCK_NS;
    bool has_waited = was_out && end - receiving->start >= LEAST_BLOCK_NS;
    bool is_apart = has_polled && receiving->start - poll->end >= ADJACENT_NS;
    return (struct receipt_wait){has_polled ? poll->start : receiving->start,
                                 is_apart && !has_waited ? poll->end : end,
                                 has_polled || has_waited};
}

static void end_received(const struct receiving *receiving, struct transfer received, int64_t end,
                         bool was_out, const void *caller)
{
    int64_t got = received.bytes;
    struct receiver *receiver = receiver_of(receiving->descriptor);
    struct poll_wait poll = last_poll;
    last_poll = (struct poll_wait){0, 0, NO_SET, 0, false};
    uint32_t flags = flags_of(receiving->file);
    struct receipt_wait wait = wait_of(receiving, &poll, end, was_out);
    if (flags & FILE_HTTP) {
        if (!exchange_received(socket_key(receiving->descriptor), received, wait))
            stop_following(receiving->file);
        return;
    }
    if (flags & FILE_NO_HTTP)
        note_encrypted(receiving->descriptor, wait);
    if (flags & FILE_BELOW_HTTP)
        return;
    if (!take_receiver(receiver))
        return;
    if (receiver->serial == 0 || receiver->serial != GET(receiving->file, next))
        reset_receiver(receiver, receiving->file);
    if (receiver->peer.verdict == PEER_UNDECIDED) {
        judge(receiver, receiving->descriptor, receiving->file, got, caller);
        if (receiver->peer.verdict == PEER_DATA)
            emit_held(receiver, receiving->file);
    }
    if (receiver->peer.verdict == PEER_DATA && flags_of(receiving->file) & FILE_SOCKET)
        count_received(receiver->peer.name, got);
    if (receiver->peer.verdict != PEER_INTERNAL)
        add_receipt(receiver, receiving->file, (struct receipt){receiving->start, end, got}, &poll);
    unlock(&receiver->holder);
}

/* The wait before a receipt, and the receipt itself, which makes room for who sends. A call that
 * waited took what it got at its end; one that did not may have made room all along. */
static void end_waiting(const struct receiving *receiving, int64_t got, int64_t end, bool was_out)
{
    int descriptor = receiving->descriptor;
    struct open_file *file = receiving->file;
    enum ioprof_end how = got == 0 ? END_HUNG_UP : END_WOKEN;
    if (last_poll.is_pending)
        emit_channel_block(descriptor, file, last_poll.start, last_poll.end, false, how);
    last_poll.is_pending = false;
    if (was_out)
        emit_channel_block(descriptor, file, receiving->start, end, false, how);
    int64_t taken = was_out ? end - LEAST_BLOCK_NS : receiving->start;
    if (got > 0 && is_peer(file))
        emit_channel_wake(descriptor, file, receiving->start > taken ? receiving->start : taken,
                          end, false);
}

void end_poll(int64_t start, int result, struct ready ready, uint64_t set)
{
    int saved_errno = errno;
    int64_t end = clock_now();
    bool goes_on =
        last_poll.result == 0 && last_poll.end != 0 && start - last_poll.end < SAME_WAIT_NS;
    bool has_blocked = end - start >= LEAST_BLOCK_NS;
    if (last_poll.is_pending)
        emit_block(last_poll.start, last_poll.end, OBJECT_DESCRIPTORS, last_poll.set, END_WOKEN);
    last_poll = (struct poll_wait){goes_on ? last_poll.start : start, end, set, result,
                                   has_blocked && result > 0 && ready.descriptor < 0};
    if (has_blocked && !last_poll.is_pending) {
        struct open_file *file = NULL;
        enum ioprof_end how = result > 0    ? ready.how
                              : result == 0 ? END_TIME_WAS_OVER
                                            : END_INTERRUPTED;
        if (ready.descriptor >= 0 && regular_file(ready.descriptor) == NULL)
            file = known_file(ready.descriptor);
        if (file != NULL && is_channel(file))
            emit_channel_block(ready.descriptor, file, start, end, ready.sends, how);
        else
            emit_block(start, end, OBJECT_DESCRIPTORS, set, how);
    }
    errno = saved_errno;
}

void end_receiving(const struct receiving *receiving, int64_t got, const struct iovec *parts,
                   int count, const void *caller)
{
    int saved_errno = errno;
    bool was_out = !can_watch_switches() || was_switched_out();
    if (got < 0 || receiving->file == NULL) /* EAGAIN: the wait is still to come */
        return;
    int64_t end = clock_now();
    guard_enter();
    end_waiting(receiving, got, end, was_out);
    if (is_peer(receiving->file))
        end_received(receiving, (struct transfer){parts, count, got}, end, was_out, caller);
    compare_when_due(end);
    guard_leave();
    errno = saved_errno;
}

void end_peer(int descriptor, struct open_file *file)
{
    if (flags_of(file) & FILE_HTTP) {
        guard_enter();
        exchange_closed(socket_key(descriptor));
        guard_leave();
    }
    struct receiver *receiver = receiver_of(descriptor);
    int64_t now = clock_now();
    if (!take_receiver(receiver))
        return;
    if (receiver->serial != 0 && receiver->serial == GET(file, next) &&
        receiver->peer.verdict == PEER_DATA && receiver->carried > 0) {
        guard_enter();
        emit_receipt(receiver, file, &(struct receipt){now, now, receiver->carried});
        guard_leave();
        receiver->carried = 0;
    }
    unlock(&receiver->holder);
}
