/* Hooks of liburing, which enters the kernel by itself. */
#include "real.h"
#include "process.h"
#include "uring.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>

static bool is_own_function(const void *address)
{
    Dl_info own, other;
    return dladdr(&ring, &own) != 0 && dladdr(address, &other) != 0 &&
           own.dli_fbase == other.dli_fbase;
}

/* Looked up in every library: liburing may be loaded long after this library, where RTLD_NEXT does
 * not look. */
static void *find_uring_function(const char *name)
{
    struct link_map *map = NULL;
    void *address = NULL, *program = dlopen(NULL, RTLD_LAZY);
    if (program != NULL && dlinfo(program, RTLD_DI_LINKMAP, &map) != 0)
        map = NULL;
    for (; map != NULL && address == NULL; map = map->l_next) {
        void *library = map->l_name[0] == '/' ? dlopen(map->l_name, RTLD_LAZY | RTLD_NOLOAD) : NULL;
        address = library == NULL ? NULL : dlsym(library, name);
        if (address != NULL && is_own_function(address))
            address = NULL;
        if (library != NULL)
            dlclose(library);
    }
    return address;
}

static void *uring_function(enum real function, const char *name)
{
    void *address = atomic_load_explicit(&real_addresses[function], memory_order_relaxed);
    if (address == NULL) {
        int saved_errno = errno;
        address = find_uring_function(name);
        atomic_store_explicit(&real_addresses[function], address, memory_order_relaxed);
        errno = saved_errno;
    }
    return address;
}

#define FIND(name) \
    real_##name##_type *real = (real_##name##_type *)uring_function(REAL_##name, #name)

#define MAKES(name, parameters, arguments)                    \
    int hook_##name parameters                                \
    {                                                         \
        FIND(name);                                           \
        int result = real == NULL ? -ENOSYS : real arguments; \
        if (result >= 0 && is_recording())                    \
            add_liburing(queue);                              \
        return result;                                        \
    }

MAKES(io_uring_queue_init, (unsigned entries, void *queue, unsigned flags), (entries, queue, flags))
MAKES(io_uring_queue_init_params, (unsigned entries, void *queue, void *parameters),
      (entries, queue, parameters))
MAKES(io_uring_queue_init_mem,
      (unsigned entries, void *queue, void *parameters, void *memory, size_t size),
      (entries, queue, parameters, memory, size))

int hook_io_uring_setup(unsigned entries, void *parameters)
{
    FIND(io_uring_setup);
    int result = real == NULL ? -ENOSYS : real(entries, parameters);
    if (result >= 0 && is_recording())
        add_uring(result, parameters);
    return result;
}

/* `descriptor` and `queue` say which ring. */
#define ENTERS(name, parameters, arguments, descriptor, queue)     \
    int hook_##name parameters                                     \
    {                                                              \
        FIND(name);                                                \
        if (real == NULL)                                          \
            return -ENOSYS;                                        \
        if (!is_recording_already())                               \
            return real arguments;                                 \
        struct uring_entry entry = begin_uring(descriptor, queue); \
        int result = real arguments;                               \
        end_uring(&entry);                                         \
        return result;                                             \
    }

ENTERS(io_uring_submit, (void *queue), (queue), -1, queue)
ENTERS(io_uring_submit_and_wait, (void *queue, unsigned count), (queue, count), -1, queue)
ENTERS(io_uring_submit_and_wait_timeout,
       (void *queue, void **completion, unsigned count, void *timeout, void *signals),
       (queue, completion, count, timeout, signals), -1, queue)
ENTERS(io_uring_submit_and_get_events, (void *queue), (queue), -1, queue)
ENTERS(io_uring_get_events, (void *queue), (queue), -1, queue)
ENTERS(io_uring_wait_cqes,
       (void *queue, void **completion, unsigned count, void *timeout, void *signals),
       (queue, completion, count, timeout, signals), -1, queue)
ENTERS(io_uring_wait_cqe_timeout, (void *queue, void **completion, void *timeout),
       (queue, completion, timeout), -1, queue)
ENTERS(__io_uring_get_cqe,
       (void *queue, void **completion, unsigned submit, unsigned count, void *signals),
       (queue, completion, submit, count, signals), -1, queue)
ENTERS(io_uring_enter,
       (unsigned descriptor, unsigned submit, unsigned complete, unsigned flags, void *signals),
       (descriptor, submit, complete, flags, signals), (int)descriptor, NULL)
ENTERS(io_uring_enter2,
       (unsigned descriptor, unsigned submit, unsigned complete, unsigned flags, void *argument,
        size_t size),
       (descriptor, submit, complete, flags, argument, size), (int)descriptor, NULL)

int hook_io_uring_register_files(void *queue, const int *files, unsigned count)
{
    FIND(io_uring_register_files);
    int result = real == NULL ? -ENOSYS : real(queue, files, count);
    if (result >= 0 && is_recording_already())
        register_files(-1, queue, files, count);
    return result;
}

void hook_io_uring_queue_exit(void *queue)
{
    FIND(io_uring_queue_exit);
    if (real == NULL)
        return;
    if (is_recording_already())
        end_uring_of(-1, queue);
    real(queue);
}
