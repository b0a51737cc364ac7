#include "positions.h"

#include "real.h"

#include <errno.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

/* An owner that was cancelled while it held the position never unlocks it: after some 10 s the
 * waiting thread does. */
__attribute__((noinline, cold)) void wait_for_owner(struct open_file *file)
{
    const struct timespec pause = {0, 100000};
    atomic_fetch_or(&file->flags, FILE_CONTENDED);
    for (int attempt = 0; atomic_load(&file->flags) & FILE_BUSY; attempt++) {
        if (attempt < 1000)
            sched_yield();
        else if (attempt < 100000)
            real_system_call(SYS_nanosleep, (long)&pause, 0, 0, 0, 0, 0);
        else
            clear_flags(file, FILE_BUSY);
    }
}

int64_t ask_position(int descriptor)
{
    int saved_errno = errno;
    int64_t position = REAL(lseek64)(descriptor, 0, SEEK_CUR);
    errno = saved_errno;
    return position;
}

bool lock_position(struct open_file *file)
{
    if (is_shared(file) || GET(file, owner) != this_thread())
        return false;
    if (is_single_threaded())
        return true;
    if (!(atomic_fetch_or(&file->flags, FILE_BUSY) & FILE_CONTENDED))
        return true;
    clear_flags(file, FILE_BUSY);
    return false;
}
