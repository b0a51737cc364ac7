#include "switches.h"

#ifdef RSEQ_SIG

#include "real.h"

#include <sys/prctl.h>
#include <time.h>

extern const unsigned int __rseq_size __attribute__((weak));

/* The signature that must precede the address of the abort handler; none of it is ever executed. */
static const struct {
    uint32_t never_executed, signature, abort;
} sequence_text = {0, RSEQ_SIG, 0};

struct switch_sequence switch_sequence;
bool can_detect_switches;

void switches_setup(void)
{
    const struct timespec shortest = {0, 1};
    if (&__rseq_size == NULL || __rseq_size == 0)
        return;
    switch_sequence.start = (uint64_t)(uintptr_t)&sequence_text.never_executed;
    switch_sequence.length = 1;
    switch_sequence.abort = (uint64_t)(uintptr_t)&sequence_text.abort;
    can_detect_switches = true;
    if (can_watch_switches()) {
        /* by default the kernel lets a thread sleep for up to 50 us more */
        const long slack_ns = real_system_call(SYS_prctl, PR_GET_TIMERSLACK, 0, 0, 0, 0, 0);
        if (slack_ns > 1)
            real_system_call(SYS_prctl, PR_SET_TIMERSLACK, 1, 0, 0, 0, 0);
        begin_switch_watch();
        real_system_call(SYS_nanosleep, (long)&shortest, 0, 0, 0, 0, 0);
        can_detect_switches = was_switched_out();
        if (slack_ns > 1)
            real_system_call(SYS_prctl, PR_SET_TIMERSLACK, slack_ns, 0, 0, 0, 0);
    } else {
        can_detect_switches = false;
    }
}

#endif
