/* Which rings of io_uring are followed, and where their queues lie. */
#include "real.h"
#include "uring.h"
#include "uring_state.h"

#include <string.h>
#include <sys/mman.h>

#define TAKEN                                                                           \
    UINT32_MAX /* of a place: a thread makes a ring there; no recording has this number \
                */

table_pages urings;
_Atomic int num_urings;

struct uring *find_uring(int descriptor, const void *queue)
{
    struct uring *table = mapped_table(&urings);
    int count = atomic_load_explicit(&num_urings, memory_order_acquire);
    for (int place = 0; table != NULL && place < count; place++) {
        struct uring *each = &table[place];
        if (GET(each, generation) != GET(process, generation))
            continue;
        if (queue != NULL ? each->queue == queue : each->descriptor == descriptor)
            return each;
    }
    return NULL;
}

bool is_followed_uring(int descriptor)
{
    const struct uring *found = find_uring(descriptor, NULL);
    return found != NULL && !found->is_incomplete;
}

/* A free place, that of a ring of a recording before included. */
static struct uring *new_uring(void)
{
    struct uring *table = map_table(&urings, MAX_RINGS * sizeof(struct uring));
    for (int place = 0; table != NULL && place < MAX_RINGS; place++) {
        struct uring *each = &table[place];
        uint32_t found = GET(each, generation);
        if (found == GET(process, generation) || found == TAKEN ||
            !atomic_compare_exchange_strong(&each->generation, &found, TAKEN))
            continue;
        memset((char *)each + offsetof(struct uring, holder), 0,
               offsetof(struct uring, pending) - offsetof(struct uring, holder));
        for (int before = atomic_load(&num_urings); before <= place;)
            atomic_compare_exchange_strong(&num_urings, &before, place + 1);
        return each;
    }
    return NULL;
}

/* Makes room for what may be in flight at a time: as many as there are places for completions, and
 * as many again. */
static bool make_room(struct uring *ring, uint32_t completions)
{
    uint32_t capacity = 128;
    while (capacity < 2 * completions && capacity < MAX_PENDING)
        capacity *= 2;
    if (ring->capacity < capacity) { /* the smaller table of a ring before, which no thread uses */
        void *old = mapped_table(&ring->pending);
        atomic_store(&ring->pending, NULL);
        if (old != NULL)
            real_system_call(SYS_munmap, (long)old, (long)(ring->capacity * sizeof(struct pending)),
                             0, 0, 0, 0);
        ring->capacity = capacity;
    }
    struct pending *pending = map_table(&ring->pending, ring->capacity * sizeof(struct pending));
    if (pending != NULL)
        memset(pending, 0, ring->capacity * sizeof(struct pending));
    return pending != NULL;
}

/* A place for a ring with room for what is in flight; NULL: there is none, and the ring is not
 * followed. */
static struct uring *claim_uring(int descriptor, const void *queue, uint32_t completions)
{
    struct uring *before = find_uring(descriptor, queue), *ring;
    if (before != NULL) /* which went in a way that was not seen */
        atomic_store(&before->generation, 0);
    ring = new_uring();
    if (ring == NULL || make_room(ring, completions))
        return ring;
    atomic_store(&ring->generation, 0);
    return NULL;
}

static void publish_uring(struct uring *ring)
{
    atomic_store_explicit(&ring->generation, GET(process, generation), memory_order_release);
}

void add_uring(int descriptor, const void *parameters)
{
    const struct parameters *found = parameters;
    struct uring *ring;
    if ((found->flags & NOT_FOLLOWED) ||
        (ring = claim_uring(descriptor, NULL, found->completions)) == NULL) {
        set_noted(NOTED_IO_URING);
        return;
    }
    ring->descriptor = descriptor;
    ring->parameters = *found;
    ring->request_scale = found->flags & SETUP_SQE128 ? 2 : 1;
    ring->completion_scale = found->flags & SETUP_CQE32 ? 2 : 1;
    publish_uring(ring);
}

/* Once both queues and the requests are mapped. */
static void find_queues(struct uring *ring)
{
    const struct request_offsets *from = &ring->parameters.of_requests;
    const struct completion_offsets *to = &ring->parameters.of_completions;
    char *completions = ring->completion_memory;
    if (completions == NULL && (ring->parameters.features & FEATURE_SINGLE_MMAP))
        completions = ring->request_memory;
    if (ring->request_memory == NULL || completions == NULL)
        return;
    ring->request_mask = *(uint32_t *)(ring->request_memory + from->mask);
    ring->array = ring->parameters.flags & SETUP_NO_SQARRAY
                      ? NULL
                      : (uint32_t *)(ring->request_memory + from->array);
    ring->completion_mask = *(uint32_t *)(completions + to->mask);
    ring->completion_tail = (uint32_t *)(completions + to->tail);
    ring->completions = (struct completion *)(completions + to->completions);
    ring->request_tail = (uint32_t *)(ring->request_memory + from->tail);
}

void map_uring(int descriptor, uint64_t offset, void *mapped)
{
    struct uring *ring = find_uring(descriptor, NULL);
    if (ring == NULL)
        return;
    if (offset == 0)
        ring->request_memory = mapped;
    else if (offset == OFFSET_COMPLETIONS)
        ring->completion_memory = mapped;
    else if (offset == OFFSET_REQUESTS)
        ring->requests = mapped;
    find_queues(ring);
}

void add_liburing(const void *made)
{
    const struct liburing *queue = made;
    struct uring *ring;
    if ((queue->flags & NOT_FOLLOWED) ||
        (ring = claim_uring(queue->descriptor, queue, *queue->completions.entries)) == NULL) {
        set_noted(NOTED_IO_URING);
        return;
    }
    ring->queue = queue;
    ring->descriptor = queue->descriptor;
    ring->requests = queue->requests.requests;
    ring->request_mask = *queue->requests.mask;
    ring->request_scale = queue->flags & SETUP_SQE128 ? 2 : 1;
    ring->completion_scale = queue->flags & SETUP_CQE32 ? 2 : 1;
    ring->completion_mask = *queue->completions.mask;
    ring->completion_tail = queue->completions.tail;
    ring->completions = queue->completions.completions;
    publish_uring(ring);
}

void register_files(int descriptor, const void *queue, const int *files, uint32_t count)
{
    struct uring *ring = find_uring(descriptor, queue);
    if (ring == NULL)
        return;
    ring->num_registered = count < MAX_REGISTERED ? count : MAX_REGISTERED;
    for (uint32_t place = 0; place < ring->num_registered; place++) {
        struct open_file *file = regular_file(files[place]);
        ring->registered[place] = file == NULL
                                      ? (struct registered){.path = -1}
                                      : (struct registered){GET(file, system), GET(file, path),
                                                            (flags_of(file) & FILE_DIRECT) != 0};
    }
}
