/* Hooks of calls that wait until what was written is on storage.
 * Writes themselves mostly end in memory, see hooks_write.c. */
#include "paths.h"
#include "real.h"
#include "short_calls.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SLOW_FLUSH_NS 100000 /* from here on it is a span of its own */

/* A span named after the call and the file, such as "flush by fsync of /logs/metrics.db" (`FLUSH`
 * in schema.py). */
static __attribute__((noinline)) void emit_flush(int64_t start, int64_t end, int descriptor,
                                                 const char *call)
{
    char name[PATH_MAX + 32];
    char *after = stpcpy(stpcpy(name, "flush by "), call);
    if (descriptor >= 0) {
        after = stpcpy(after, " of ");
        size_t length = descriptor_path(descriptor, after);
        after = length > 0 ? after + length : after - sizeof " of " + 1;
    }
    emit_event(&(struct event){start, end, -1, -1, -1, text_number(name, (size_t)(after - name)),
                               KIND_USER, SOURCE_NONE});
}

static void end_flush(int64_t start, int descriptor, const char *call)
{
    int64_t end = clock_now();
    guard_enter();
    if (end - start < SLOW_FLUSH_NS) {
        tally_short_call(end - start);
    } else {
        int saved_errno = errno;
        emit_flush(start, end, descriptor, call);
        errno = saved_errno;
    }
    compare_when_due(end);
    guard_leave();
}

#define FLUSH(name, parameters, arguments, descriptor, waits) \
    int hook_##name parameters                                \
    {                                                         \
        if (!is_recording() || !(waits))                      \
            return REAL(name) arguments;                      \
        int64_t start = clock_now();                          \
        int result = REAL(name) arguments;                    \
        end_flush(start, descriptor, #name);                  \
        return result;                                        \
    }

FLUSH(fsync, (int descriptor), (descriptor), descriptor, true)
FLUSH(fdatasync, (int descriptor), (descriptor), descriptor, true)
FLUSH(syncfs, (int descriptor), (descriptor), descriptor, true)
FLUSH(msync, (void *address, size_t length, int flags), (address, length, flags), -1,
      (flags & MS_SYNC) != 0)

void hook_sync(void)
{
    if (!is_recording()) {
        REAL(sync)();
        return;
    }
    int64_t start = clock_now();
    REAL(sync)();
    end_flush(start, -1, "sync");
}
