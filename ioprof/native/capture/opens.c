#include "opens.h"

#include "open_files.h"
#include "paths.h"
#include "received_files.h"
#include "short_calls.h"

/* Of a file whose contents are not read: `OPEN_TO_WRITE` in schema.py. A database has O_RDWR, and
 * O_CREAT, also to read. */
static inline bool is_to_write(int flags)
{
    return (flags & O_ACCMODE) == O_WRONLY || flags & (O_TRUNC | O_EXCL);
}

static inline void emit_open(int descriptor, int64_t start, int64_t end, int32_t path, int flags)
{
    if (descriptor >= 0)
        add_file(descriptor, flags, path);
    if (__builtin_expect((flags & O_CREAT) && descriptor >= 0, 0))
        begin_created(descriptor);
    struct event event = {start, end, -1, -1, path, -1, KIND_OPEN, SOURCE_NONE};
    if (descriptor >= 0 && is_to_write(flags)) {
        event.kind = KIND_USER;
        event.name = NAME("open to write");
    }
    emit_event(&event);
    compare_when_due(end);
}

HOT void end_open(int descriptor, int64_t start, int folder, const char *path, int flags,
                  const struct string_key *key)
{
    int64_t end = clock_now();
    guard_enter();
    if (__builtin_expect(descriptor < 0, 0)) {
        int saved_errno = errno;
        if (end - start < SLOW_CALL_NS)
            tally_short_call(end - start);
        else if (saved_errno != EFAULT && !is_in_spool(path))
            emit_open(descriptor, start, end, opened_number(key, folder, path), flags);
        errno = saved_errno;
    } else if (!is_in_spool(path)) {
        emit_open(descriptor, start, end, opened_number(key, folder, path), flags);
    } else {
        forget_file(descriptor);
    }
    guard_leave();
}
