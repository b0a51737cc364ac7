/* Other processes, by /proc: who writes to a pipe, and whether a process belongs to the inside of
 * the job. */
#ifndef IOPROF_PROCESSES_H
#define IOPROF_PROCESSES_H

#include "gnu_source.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define PROGRAM_BYTES 16 /* as in the kernel: TASK_COMM_LEN */

/* Who writes to a pipe. */
struct pipe_writer {
    pid_t pid; /* 0: not found; it may have ended */
    bool is_internal;
};

#pragma GCC visibility push(hidden)

/* Whether a process has a descriptor with this link in /proc/PID/fd, or, with `is_writable`, one
 * that can be written to; one for which `is_known` is true does not count. */
bool has_open_file(pid_t pid, const char *link, bool is_writable, bool (*is_known)(int descriptor));

/* Searches this process, its descendants, and those of its parent and grandparent for an open write
 * end. Of several processes the deepest is returned, because a shell that waits for a pipeline
 * keeps the write end open, too. About 0.2 ms, once per pipe. By one thread at a time, as the next.
 */
struct pipe_writer find_pipe_writer(uint64_t inode);

/* Whether the process runs the same program image as this one, or serves Python's multiprocessing:
 * what it sends are messages within the job. A process that was forked without exec has the same
 * address of its stack (randomised at each exec), and a rank of the same job the same command line.
 */
bool is_internal_process(pid_t pid);

/* The name of its program; "?" if it is gone. Returns the length. */
size_t program_name(pid_t pid, char into[PROGRAM_BYTES]);

#pragma GCC visibility pop

#endif
