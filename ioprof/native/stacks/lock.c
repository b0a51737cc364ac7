#define _GNU_SOURCE
#include "lock.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

/* struct _gil_runtime_state of CPython 3.11 to 3.14: Include/internal/pycore_gil.h. */
#define LAST_HOLDER 8u
#define LOCKED 16u
#define LOCK_BYTES 208u

/* Whether the main thread of a process is blocked on a futex within the lock: on its condition
 * variable, or on its mutex.
 *
 * A thread that has released the lock and computes, reads or waits for something else may do so
 * while another holds it, and loses nothing by that. /proc/PID/syscall has the number of the system
 * call, and its arguments in hexadecimal, or "running".
 */
static bool waits_within(pid_t pid, uint64_t lock)
{
    char path[48], text[64];
    snprintf(path, sizeof path, "/proc/%d/syscall", (int)pid);
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0)
        return false;
    ssize_t length = read(descriptor, text, sizeof text - 1);
    close(descriptor);
    if (length <= 0)
        return false;
    text[length] = '\0';
    char *end;
    long number = strtol(text, &end, 10);
    if (end == text || number != SYS_futex)
        return false;
    uint64_t address = strtoull(end, NULL, 16);
    return address >= lock && address < lock + LOCK_BYTES;
}

uint64_t awaited_holder(struct view *view, const struct target *target)
{
    uint64_t locked, holder;
    if (!target->lock || !load(view, target->lock + LOCKED, &locked) || (uint32_t)locked != 1 ||
        !load(view, target->lock + LAST_HOLDER, &holder) || !holder ||
        holder == target->thread_state)
        return 0;
    return waits_within(target->pid, target->lock) ? holder : 0;
}
