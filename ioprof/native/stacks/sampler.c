/* The functions that ioprof/stacks/library.py calls. One thread calls them all, except `ioprof_stacks_stop`. */

#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "codes.h"
#include "target.h"

#define EXPORT __attribute__((visibility("default")))
#define MOST_TARGETS 1024u
#define MOST_FAILURES 50u /* in a row, after which a target is left alone */

struct sampler {
    struct shared shared;
    int stopped; /* an eventfd */
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
    sampler->stopped = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (sampler->stopped < 0) {
        free(sampler);
        return NULL;
    }
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
    close(sampler->stopped);
    free(sampler);
}

/* May be called by any thread: the run in progress returns, and so does each later one. */
EXPORT void ioprof_stacks_stop(struct sampler *sampler)
{
    uint64_t one = 1;
    ssize_t written = write(sampler->stopped, &one, sizeof one);
    (void)written; /* it fails only where the counter is full, that is, stopped */
}

/* Reads memory of a process; returns errno. */
EXPORT int ioprof_stacks_read(int pid, uint64_t address, void *to, uint64_t bytes)
{
    return copy_memory(pid, address, to, bytes);
}

EXPORT int ioprof_stacks_add(
    struct sampler *sampler, int pid, uint32_t number, uint32_t every, uint64_t thread_state, const struct layout *layout)
{
    if (!fits(layout))
        return EINVAL;
    struct target *target = sampler->num_targets < MOST_TARGETS ? calloc(1, sizeof *target) : NULL;
    if (!target)
        return ENOMEM;
    target->pid = pid;
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
        uint64_t failed = found->failures >= MOST_FAILURES || found->error == ESRCH || found->error == EPERM;
        *state = (struct state){found->samples, found->torn, found->idle, failed, (uint64_t)found->error};
    }
}

/* Between half the period and one and a half: a job whose steps take as long as the period is not always met at the same place. */
static uint64_t random_wait_ns(struct sampler *sampler, uint64_t period_ns)
{
    sampler->random ^= sampler->random << 13;
    sampler->random ^= sampler->random >> 17;
    sampler->random ^= sampler->random << 5;
    return period_ns / 2 + (uint64_t)((double)sampler->random / UINT32_MAX * (double)period_ns);
}

/* Samples all targets again and again until `until_ns`, or until the sampler is stopped. Returns the number of passes. */
EXPORT uint64_t ioprof_stacks_run(struct sampler *sampler, uint64_t until_ns, uint64_t period_ns)
{
    struct pollfd stopped = {.fd = sampler->stopped, .events = POLLIN};
    uint64_t passes = 0;
    for (;;) {
        uint64_t now_ns = clock_ns(CLOCK_MONOTONIC), wait_ns = random_wait_ns(sampler, period_ns);
        if (now_ns >= until_ns)
            break;
        if (wait_ns > until_ns - now_ns && passes)
            wait_ns = until_ns - now_ns;
        struct timespec wait = {(time_t)(wait_ns / 1000000000), (long)(wait_ns % 1000000000)};
        if (ppoll(&stopped, 1, &wait, NULL) > 0)
            break;
        sampler->pass++;
        passes++;
        for (uint32_t i = 0; i < sampler->num_targets; i++) {
            struct target *target = sampler->targets[i];
            if (sampler->pass % target->every == 0 && target->failures < MOST_FAILURES)
                sample_target(&sampler->shared, target, clock_ns(CLOCK_MONOTONIC));
        }
    }
    flush(&sampler->shared.output);
    return passes;
}

/* errno of the first write that failed; the number of samples that found no room, and the time spent on new code objects. */
EXPORT int ioprof_stacks_error(const struct sampler *sampler, uint64_t *full, uint64_t *reading_ns)
{
    *full = sampler->shared.full;
    *reading_ns = sampler->shared.reading_ns;
    return sampler->shared.output.error;
}
