#include "core_waits.h"

#include "labels.h"
#include "observing.h"

#include <sys/resource.h>

/* Of core_waits.py, where the reasons are. */
enum { LEAST_NS = 200000, LEAST_LOST_NS = 50000, PERIOD_NS = 2000000 };

static struct label core_wait_name;

int prepare_core_waits(void)
{
    core_wait_name.text = PyUnicode_InternFromString("waiting for a core");
    return core_wait_name.text == NULL ? -1 : 0;
}

static void read_usage(int64_t *used_ns, int64_t *num_waits)
{
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    *used_ns = (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * INT64_C(1000000000) +
               (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * INT64_C(1000);
    *num_waits = usage.ru_nvcsw;
}

void begin_core_wait(struct core_waits *cores, int place, int64_t now_ns)
{
    if (now_ns < cores->next_ns[place]) {
        cores->begin_ns = 0;
        return;
    }
    cores->next_ns[place] = now_ns + PERIOD_NS;
    cores->begin_ns = now_ns;
    cores->place = place;
    read_usage(&cores->used_ns, &cores->num_waits);
}

void end_core_wait(struct core_waits *cores, int64_t now_ns)
{
    const int64_t begin_ns = cores->begin_ns;
    cores->begin_ns = 0;
    if (begin_ns == 0 || now_ns - begin_ns < LEAST_NS)
        return;
    int64_t used_ns, num_waits;
    read_usage(&used_ns, &num_waits);
    const int64_t lost_ns = now_ns - begin_ns - (used_ns - cores->used_ns);
    if (lost_ns >= LEAST_LOST_NS && num_waits == cores->num_waits)
        write_step_span(&user_kind, now_ns - lost_ns, now_ns, &core_wait_name, -1, -1);
}
