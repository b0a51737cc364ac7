/* One thread of a process of the job that is sampled. */

#ifndef IOPROF_STACKS_TARGET_H
#define IOPROF_STACKS_TARGET_H

#include <time.h>

#include "layout.h"
#include "memory.h"
#include "output.h"
#include "table.h"

#define MOST_FRAMES 192u /* of a stack, innermost first; what lies outside of them is left out */

/* A code object of the process, as it was when it was read. */
struct code {
    uint64_t address;
    uint64_t identity[4]; /* file name, qualified name, line table, first line: addresses, and a
                             number */
    int64_t instructions; /* two bytes each */
    uint64_t checked_ns, check_after_ns;
    uint32_t number; /* in the file */
};

/* The code objects of a process, which its threads share. */
struct known_codes {
    unsigned users;
    struct table places; /* address to place in `code` */
    struct code *code;
    size_t count, room;
};

struct target {
    pid_t pid;
    uint32_t number;
    uint32_t every;    /* of so many passes it is sampled in one */
    uint32_t failures; /* in a row */
    int error;         /* errno of the last failure */
    uint64_t thread_state;
    uint32_t thread; /* the kernel's number of the thread, if its state may become another one's; 0:
                        it does not */
    uint64_t lock;   /* address of the interpreter's lock; 0: not known */
    struct layout layout;
    uint64_t pages[MOST_PAGES];
    unsigned num_pages;
    struct known_codes *known;
    uint64_t samples; /* stacks that were read */
    uint64_t torn;    /* stacks that changed while they were read, and were dropped */
    uint64_t idle;    /* times at which the thread ran no Python code */
};

#define LONGEST_TEXT 4096u       /* characters: PATH_MAX */
#define LONGEST_TABLE (1u << 16) /* bytes of a line table */

/* A string of Python. */
struct text {
    uint32_t width; /* bytes of a character: 1, 2 or 4 */
    uint32_t bytes;
    uint8_t content[4 * LONGEST_TEXT];
};

/* What all targets share: strings and stacks are written once. */
struct shared {
    struct output output;
    struct table codes;  /* hash of a code object's content to its number */
    struct table stacks; /* hash of a stack to its number */
    struct view view;
    struct text filename, qualname; /* of the code object that is being read */
    uint8_t table[LONGEST_TABLE];
    uint64_t reading_ns; /* spent on code objects, which are read once, and not on each sample */
    uint64_t full;       /* samples without a stack, because there are too many different ones */
};

uint64_t clock_ns(clockid_t clock);

/* Samples the thread at `now_ns`. Failures are counted in the target. */
void sample_target(struct shared *shared, struct target *target, uint64_t now_ns);

void free_target(struct target *target);

#endif
