#include "opens.h"

#include "open_files.h"
#include "paths.h"
#include "received_files.h"
#include "short_calls.h"

static inline void emit_open(int descriptor, int64_t start, int64_t end, int32_t path, int flags)
{
    if (descriptor >= 0)
        add_file(descriptor, flags, path);
    if (__builtin_expect((flags & O_CREAT) && descriptor >= 0, 0))
        begin_created(descriptor);
    int64_t offset =
        flags & O_CREAT ? 0 : -1; /* a file that may be new is written from its beginning */
    emit_event(&(struct event){start, end, -1, offset, path, -1, KIND_OPEN, SOURCE_NONE});
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
