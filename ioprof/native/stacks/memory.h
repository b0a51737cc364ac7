/* The memory of another process, as one sample sees it: pages that are copied in as few system
 * calls as possible. */

#ifndef IOPROF_STACKS_MEMORY_H
#define IOPROF_STACKS_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define PAGE_BYTES 4096u
#define MOST_PAGES 32u

/* What one sample copied. Pages are in the order in which they were first used. */
struct view {
    pid_t pid;
    int error; /* errno of the first copy that failed; 0: none */
    unsigned count;
    unsigned last; /* the page that was used last */
    uint64_t addresses[MOST_PAGES];
    bool used[MOST_PAGES];
    uint8_t pages[MOST_PAGES][PAGE_BYTES];
};

/* Copies `bytes` bytes at `address` of a process; returns errno, 0 where all were copied. The
 * process is not stopped. */
int copy_memory(pid_t pid, uint64_t address, void *to, size_t bytes);

/* Begins a sample of a process, with the pages that its last sample used. */
void begin_view(struct view *view, pid_t pid, const uint64_t *addresses, unsigned count);

/* The word at an address, which is a multiple of eight; false where it cannot be read. */
bool load(struct view *view, uint64_t address, uint64_t *value);

/* Writes the addresses of the pages that this sample used; returns how many. */
unsigned used_pages(const struct view *view, uint64_t *addresses);

#endif
