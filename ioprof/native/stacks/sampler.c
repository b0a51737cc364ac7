/* The functions that ioprof/stacks/library.py calls. One thread calls them all, except
 * `ioprof_stacks_stop`. */

#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "codes.h"
#include "target.h"

#define EXPORT __attribute__((visibility("default")))
#define MOST_TARGETS 1024u
#define LOOK_AFTER_NS UINT64_C(200000000)
#define MOST_FAILURES 50u /* in a row, after which a target is left alone */

struct sampler {
    struct shared shared;
    _Atomic uint32_t stopped; /* a futex: waiting on it takes less time than polling a descriptor */
    uint32_t random, pass, num_targets;
    struct target *targets[MOST_TARGETS];
};

/* What is known of a target, or of the sampler. All fields are uint64, as Python reads them. */
struct state {
    uint64_t samples, torn, idle, failed, error;
};

uint64_t clock_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

EXPORT struct sampler *ioprof_stacks_open(int descriptor)
{
    struct sampler *sampler = calloc(1, sizeof *sampler);
    if (!sampler)
        return NULL;
    sampler->shared.output.descriptor = descriptor;
    sampler->random = (uint32_t)clock_ns(CLOCK_MONOTONIC) | 1;
    return sampler;
}

EXPORT void ioprof_stacks_close(struct sampler *sampler)
{
    flush(&sampler->shared.output);
    for (uint32_t i = 0; i < sampler->num_targets; i++) {
        free_target(sampler->targets[i]);
        free(sampler->targets[i]);
    }
    free_table(&sampler->shared.codes);
    free_table(&sampler->shared.stacks);
    free(sampler);
}

/* May be called by any thread: the run in progress returns, and so does each later one. */
EXPORT void ioprof_stacks_stop(struct sampler *sampler)
{
    atomic_store(&sampler->stopped, 1);
    syscall(SYS_futex, &sampler->stopped, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* Reads memory of a process; returns errno. */
EXPORT int ioprof_stacks_read(int pid, uint64_t address, void *to, uint64_t bytes)
{
    return copy_memory(pid, address, to, bytes);
}

static bool has_failed(const struct target *target)
{
    return target->failures >= MOST_FAILURES || target->error == ESRCH || target->error == EPERM;
}

/* What is known of the code of a thread's process, by another of its threads; else nothing yet.
 * NULL: there is no memory. */
static struct known_codes *codes_of(const struct sampler *sampler, int pid, uint32_t thread,
                                    const struct layout *layout)
{
    for (uint32_t i = 0; thread && i < sampler->num_targets; i++) {
        const struct target *other = sampler->targets[i];
        if (other->pid == pid && !has_failed(other) &&
            !memcmp(&other->layout, layout, sizeof *layout))
            return other->known;
    }
    return calloc(1, sizeof(struct known_codes));
}

/* `thread`: the kernel's number of a thread that may end before its process; 0: the main thread. */
EXPORT int ioprof_stacks_add(struct sampler *sampler, int pid, uint32_t thread, uint32_t number,
                             uint32_t every, uint64_t thread_state, const struct layout *layout)
{
    if (!fits(layout))
        return EINVAL;
    struct target *target = sampler->num_targets < MOST_TARGETS ? calloc(1, sizeof *target) : NULL;
    struct known_codes *known = target ? codes_of(sampler, pid, thread, layout) : NULL;
    if (!known) {
        free(target);
        return ENOMEM;
    }
    known->users++;
    target->known = known;
    target->pid = pid;
    target->thread = thread;
    target->number = number;
    target->every = every ? every : 1;
    target->thread_state = thread_state;
    target->layout = *layout;
    sampler->targets[sampler->num_targets++] = target;
    return 0;
}

static uint32_t place_of(const struct sampler *sampler, uint32_t number)
{
    uint32_t place = 0;
    while (place < sampler->num_targets && sampler->targets[place]->number != number)
        place++;
    return place;
}

EXPORT void ioprof_stacks_set_every(struct sampler *sampler, uint32_t number, uint32_t every)
{
    uint32_t place = place_of(sampler, number);
    if (place < sampler->num_targets)
        sampler->targets[place]->every = every ? every : 1;
}

/* From now on, who holds the interpreter's lock at this address while the thread waits for it is
 * sampled too. */
EXPORT void ioprof_stacks_watch_lock(struct sampler *sampler, uint32_t number, uint64_t address)
{
    uint32_t place = place_of(sampler, number);
    if (place < sampler->num_targets && address % sizeof address == 0)
        sampler->targets[place]->lock = address;
}

EXPORT void ioprof_stacks_remove(struct sampler *sampler, uint32_t number)
{
    uint32_t place = place_of(sampler, number);
    if (place == sampler->num_targets)
        return;
    free_target(sampler->targets[place]);
    free(sampler->targets[place]);
    sampler->targets[place] = sampler->targets[--sampler->num_targets];
}

EXPORT void ioprof_stacks_state(const struct sampler *sampler, uint32_t number, struct state *state)
{
    uint32_t place = place_of(sampler, number);
    memset(state, 0, sizeof *state);
    if (place < sampler->num_targets) {
        const struct target *found = sampler->targets[place];
        *state = (struct state){found->samples, found->torn, found->idle, has_failed(found),
                                (uint64_t)found->error};
    }
}

/* Between half the period and one and a half: a job whose steps take as long as the period is not
 * always met at the same place. */
static uint64_t random_wait_ns(struct sampler *sampler, uint64_t period_ns)
{
    sampler->random ^= sampler->random << 13;
    sampler->random ^= sampler->random >> 17;
    sampler->random ^= sampler->random << 5;
    return period_ns / 2 + (uint64_t)((double)sampler->random / UINT32_MAX * (double)period_ns);
}

/* False: the sampler was stopped. */
static bool wait_for(struct sampler *sampler, uint64_t wait_ns)
{
    struct timespec wait = {(time_t)(wait_ns / 1000000000), (long)(wait_ns % 1000000000)};
    syscall(SYS_futex, &sampler->stopped, FUTEX_WAIT_PRIVATE, 0, &wait, NULL,
            0); /* of CLOCK_MONOTONIC */
    return !atomic_load(&sampler->stopped);
}

static void sample_all(struct sampler *sampler)
{
    sampler->pass++;
    for (uint32_t i = 0; i < sampler->num_targets; i++) {
        struct target *target = sampler->targets[i];
        if (sampler->pass % target->every == 0 && !has_failed(target))
            sample_target(&sampler->shared, target, clock_ns(CLOCK_MONOTONIC));
    }
}

static bool has_changed(const char *folder, uint64_t changed_ns)
{
    struct stat found;
    return stat(folder, &found) != 0 ||
           (uint64_t)found.st_mtim.tv_sec * 1000000000 + (uint64_t)found.st_mtim.tv_nsec !=
               changed_ns;
}

/* Samples all targets again and again until `until_ns`, until a folder (NULL: none), at which it
 * looks five times per second, has another time of change than `changed_ns`, or until the sampler
 * is stopped. Returns the number of passes. */
EXPORT uint64_t ioprof_stacks_run(struct sampler *sampler, uint64_t until_ns, uint64_t period_ns,
                                  const char *folder, uint64_t changed_ns)
{
    uint64_t passes = 0, look_ns = clock_ns(CLOCK_MONOTONIC) + LOOK_AFTER_NS;
    for (;;) {
        uint64_t now_ns = clock_ns(CLOCK_MONOTONIC), wait_ns = random_wait_ns(sampler, period_ns);
        if (now_ns >= until_ns)
            break;
        if (folder && now_ns >= look_ns) {
            if (has_changed(folder, changed_ns))
                break;
            look_ns = now_ns + LOOK_AFTER_NS;
        }
        if (wait_ns > until_ns - now_ns && passes)
            wait_ns = until_ns - now_ns;
        if (!wait_for(sampler, wait_ns))
            break;
        passes++;
        sample_all(sampler);
    }
    flush(&sampler->shared.output);
    return passes;
}

/* errno of the first write that failed; the number of samples that found no room, and the time
 * spent on new code objects. */
EXPORT int ioprof_stacks_error(const struct sampler *sampler, uint64_t *full, uint64_t *reading_ns)
{
    *full = sampler->shared.full;
    *reading_ns = sampler->shared.reading_ns;
    return sampler->shared.output.error;
}
