#include "operations.h"

#define SLOTS                                                                                    \
    16384 /* operations in progress at a time; the queue of a CUDA stream holds about a thousand \
             kernels */
#define NEVER INT64_MAX

/* `state` has the number of the operation in bits 32-63, how many of its channels began in 16-31,
 * and how many ended in 0-15. A slot with a channel that began and has not ended keeps its
 * operation, so that the other fields are valid for whoever began one. */
struct slot {
    _Atomic uint64_t state;
    _Atomic int64_t first_timer; /* relative to the timer's base */
    _Atomic int64_t last_timer;
    _Atomic int64_t written_timer; /* what the last start record says */
    _Atomic int64_t gpu_ns; /* when the GPU was first seen at work, and data of a peer first came */
    _Atomic int64_t data_ns;
};

static struct slot slots[SLOTS];
static _Atomic uint32_t last_operation;

static uint32_t begun(uint64_t state)
{
    return (uint32_t)(state >> 16) & 0xffff;
}

static uint32_t ended(uint64_t state)
{
    return (uint32_t)state & 0xffff;
}

static struct slot *slot_of(uint32_t operation)
{
    return &slots[operation % SLOTS];
}

static void lower(_Atomic int64_t *least, int64_t value)
{
    int64_t known = atomic_load_explicit(least, memory_order_relaxed);
    while (value < known && !atomic_compare_exchange_weak(least, &known, value))
        continue;
}

static void raise(_Atomic int64_t *greatest, int64_t value)
{
    int64_t known = atomic_load_explicit(greatest, memory_order_relaxed);
    while (value > known && !atomic_compare_exchange_weak(greatest, &known, value))
        continue;
}

uint32_t operation_enqueue(const struct operation_label *label)
{
    if (label->communicator >= NUM_COMMUNICATORS || !log_is_open()) {
        log_count_untracked();
        return 0;
    }
    uint32_t operation = atomic_fetch_add_explicit(&last_operation, 1, memory_order_relaxed) + 1;
    struct slot *slot = slot_of(operation);
    uint64_t state = atomic_load(&slot->state);
    if (operation == 0 || begun(state) != ended(state) ||
        !atomic_compare_exchange_strong(&slot->state, &state, (uint64_t)operation << 32)) {
        log_count_untracked();
        return 0;
    }
    atomic_store_explicit(&slot->first_timer, NEVER, memory_order_relaxed);
    atomic_store_explicit(&slot->last_timer, -NEVER, memory_order_relaxed);
    atomic_store_explicit(&slot->written_timer, NEVER, memory_order_relaxed);
    atomic_store_explicit(&slot->gpu_ns, NEVER, memory_order_relaxed);
    atomic_store_explicit(&slot->data_ns, NEVER, memory_order_relaxed);
    unsigned peer = label->peer < 0 || label->peer >= NO_PEER ? NO_PEER : (unsigned)label->peer;
    uint64_t value = label->communicator | (uint64_t)peer << 16 |
                     (uint64_t)(label->channels & 0xff) << 40 |
                     (uint64_t)(label->flags & 0x7f) << 48;
    log_write(operation, RECORD_LABEL, (uint8_t)label->function, label->sequence, (int64_t)value);
    log_write(operation, RECORD_ENQUEUE, 0, label->enqueue_ns, label->bytes);
    return operation;
}

/* One more channel of the operation began. Returns how many had before; -1: the operation is gone.
 */
static int begin(struct slot *slot, uint32_t operation)
{
    uint64_t state = atomic_load(&slot->state);
    do {
        if (state >> 32 != operation || begun(state) == 0xffff)
            return -1;
    } while (!atomic_compare_exchange_weak(&slot->state, &state, state + (1 << 16)));
    return (int)begun(state);
}

bool operation_start_channel(uint32_t operation, uint64_t timer)
{
    struct slot *slot = slot_of(operation);
    int before = begin(slot, operation);
    if (before < 0)
        return false;
    int64_t now_ns = log_now(), gpu_ns = timer != 0 ? log_gpu_time(timer) : NEVER;
    lower(&slot->first_timer, gpu_ns);
    if (before == 0) {
        atomic_store(&slot->written_timer, gpu_ns);
        log_write(operation, RECORD_START, timer != 0 ? HAS_GPU_TIME : 0, now_ns,
                  timer != 0 ? gpu_ns : 0);
    }
    return true;
}

void operation_set_end(uint32_t operation, uint64_t timer)
{
    if (timer != 0)
        raise(&slot_of(operation)->last_timer, log_gpu_time(timer));
}

void operation_stop_channel(uint32_t operation)
{
    struct slot *slot = slot_of(operation);
    uint64_t state = atomic_load(&slot->state);
    int64_t first, last, written;
    do {
        if (state >> 32 != operation || begun(state) == ended(state))
            return;
        first = atomic_load(
            &slot->first_timer); /* once no channel is open another operation may take the slot */
        last = atomic_load(&slot->last_timer);
        written = atomic_load(&slot->written_timer);
    } while (!atomic_compare_exchange_weak(&slot->state, &state, state + 1));
    if (begun(state) != ended(state) + 1)
        return;
    int64_t now_ns = log_now();
    if (first < written)
        log_write(operation, RECORD_START, HAS_GPU_TIME, now_ns, first);
    log_write(operation, RECORD_STOP, last > -NEVER ? HAS_GPU_TIME : 0, now_ns,
              last > -NEVER ? last : 0);
}

bool operation_start_proxy(uint32_t operation)
{
    return begin(slot_of(operation), operation) >= 0;
}

void operation_stop_proxy(uint32_t operation)
{
    struct slot *slot = slot_of(operation);
    uint64_t state = atomic_load(&slot->state);
    int64_t gpu_ns, data_ns;
    do {
        if (state >> 32 != operation || begun(state) == ended(state))
            return;
        gpu_ns = atomic_load(&slot->gpu_ns);
        data_ns = atomic_load(&slot->data_ns);
    } while (!atomic_compare_exchange_weak(&slot->state, &state, state + 1));
    if (begun(state) != ended(state) + 1)
        return;
    if (gpu_ns != NEVER)
        log_write(operation, RECORD_FIRST_TRANSFER, 0, gpu_ns,
                  data_ns == NEVER   ? -1
                  : data_ns < gpu_ns ? 0
                                     : data_ns - gpu_ns);
    log_write(operation, RECORD_LAST_TRANSFER, 0, log_now(), 0);
}

void operation_see_gpu(uint32_t operation)
{
    lower(&slot_of(operation)->gpu_ns, log_now());
}

void operation_see_data(uint32_t operation)
{
    lower(&slot_of(operation)->data_ns, log_now());
}
