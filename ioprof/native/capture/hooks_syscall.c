/* Hooks of asynchronous reads, and of system calls that the job makes by number. */
#include "events.h"
#include "open_files.h"
#include "reading.h"
#include "real.h"
#include "string_table.h"
#include "uring.h"
#include "waits.h"

#include <errno.h>
#include <unistd.h>

/* POSIX asynchronous I/O: a thread of the C library reads; it is not known when, only how much. */
static void end_asynchronous(const struct aiocb *request, ssize_t result)
{
    if (request->aio_lio_opcode != LIO_READ || !is_recording())
        return;
    struct open_file *file = regular_file(request->aio_fildes);
    int saved_errno = begin_own_work();
    int64_t now = clock_now();
    tally_read(result > 0 ? (uint64_t)result : 0);
    if (result > 0 && file != NULL)
        emit_event(&(struct event){now, now, result, request->aio_offset, GET(file, path),
                                   NAME("aio"), KIND_READ, SOURCE_UNKNOWN});
    end_own_work(saved_errno);
}

#define AIO_RETURN(name)                       \
    ssize_t hook_##name(struct aiocb *request) \
    {                                          \
        ssize_t result = REAL(name)(request);  \
        end_asynchronous(request, result);     \
        return result;                         \
    }

AIO_RETURN(aio_return)
AIO_RETURN(aio_return64)

int hook_io_submit(void *context, long count, void **requests)
{
    if (is_recording())
        set_noted(NOTED_LIBAIO);
    return REAL(io_submit)(context, count, requests);
}

/* ----------------------------------------------------------------------------------- by number */

/* System calls that the job makes by number. Those that change what is known of descriptors are
 * followed. */
static void before_system_call(long number, long first, long second)
{
    switch (number) {
    case SYS_io_setup:
    case SYS_io_submit:
        set_noted(NOTED_LIBAIO);
        break;
    case SYS_close:
        close_uring((int)first);
        forget_file((int)first);
        break;
    case SYS_close_range:
        forget_files((unsigned)first, (unsigned)second);
        break;
#ifdef SYS_dup2
    case SYS_dup2:
#endif
    case SYS_dup3:
        forget_file((int)second);
        break;
    default:
        break;
    }
}

/* Bytes that were read by number are counted; there is no span with their file and offset. */
static void after_system_call(long number, long descriptor, long parameters, long result)
{
    struct open_file *file;
    switch (number) {
#ifdef SYS_io_uring_setup
    case SYS_io_uring_setup:
        if (result >= 0)
            add_uring((int)result, (const void *)parameters);
        break;
#endif
    case SYS_read:
        file = known_file((int)descriptor);
        if (file != NULL && result > 0)
            atomic_fetch_add(&file->position, result);
        /* fall through */
    case SYS_pread64:
    case SYS_readv:
    case SYS_preadv:
    case SYS_preadv2:
        set_noted(NOTED_RAW_SYSTEM_CALLS);
        count_read(result);
        break;
    default:
        break;
    }
}

/* --------------------------------------------------------------------------------------- futex */

/* C++, Rust and others wait by futex(2), whose result says how many threads it woke. */
static long call_futex(long address, long operation, long c, long d, long e, long f)
{
    const long command = operation & 127, is_private = operation & 128;
    bool waits = command == 0 || command == 9; /* FUTEX_WAIT, FUTEX_WAIT_BITSET */
    int64_t start = clock_now();
    long result = REAL(syscall)(SYS_futex, address, operation, c, d, e, f);
    int saved_errno = errno;
    int64_t end = waits ? clock_now() : start;
    uint64_t object = 0;
    if (waits ? end - start >= LEAST_BLOCK_NS : result > 0)
        object = object_at((const void *)address, !is_private);
    if (object != 0 && waits)
        emit_block(start, end, OBJECT_FUTEX, object,
                   result < 0 && saved_errno == ETIMEDOUT ? END_TIME_WAS_OVER : END_WOKEN);
    else if (object != 0)
        emit_wake(start, end, OBJECT_FUTEX, object);
    errno = saved_errno;
    return result;
}

static inline bool is_followed(long number)
{
    switch (number) {
    case SYS_read:
    case SYS_pread64:
    case SYS_readv:
    case SYS_preadv:
    case SYS_preadv2:
    case SYS_close:
    case SYS_close_range:
    case SYS_dup3:
#ifdef SYS_dup2
    case SYS_dup2:
#endif
    case SYS_io_setup:
    case SYS_io_submit:
#ifdef SYS_io_uring_setup
    case SYS_io_uring_setup:
#endif
        return true;
    default:
        return false;
    }
}

/* No system call has more than six arguments. Those that were not given are whatever is in their
 * place, as in the C library's own syscall. */
__attribute__((no_sanitize("address"))) long hook_syscall(long number, ...)
{
    va_list values;
    va_start(values, number);
    long a = va_arg(values, long), b = va_arg(values, long), c = va_arg(values, long);
    long d = va_arg(values, long), e = va_arg(values, long), f = va_arg(values, long);
    va_end(values);
    if (number == SYS_futex && is_recording_already())
        return call_futex(a, b, c, d, e, f);
#ifdef SYS_io_uring_enter
    const long of_files = 2; /* IORING_REGISTER_FILES */
    if (number == SYS_io_uring_register && b == of_files && is_recording_already()) {
        long result = REAL(syscall)(number, a, b, c, d, e, f);
        if (result >= 0)
            register_files((int)a, NULL, (const int *)c, (uint32_t)d);
        return result;
    }
    if (number == SYS_io_uring_enter && is_recording_already()) {
        struct uring_entry entry = begin_uring((int)a, NULL);
        long result = REAL(syscall)(number, a, b, c, d, e, f);
        end_uring(&entry);
        return result;
    }
#endif
    bool follow = is_followed(number) && is_recording();
    if (follow)
        before_system_call(number, a, b);
    long result = REAL(syscall)(number, a, b, c, d, e, f);
    if (follow)
        after_system_call(number, a, b, result);
    return result;
}
