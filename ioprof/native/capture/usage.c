#include "usage.h"

#include <sys/resource.h>

__thread struct usage last_usage;
__thread int num_hits;

struct usage read_usage(void)
{
    struct rusage usage;
    if (getrusage(RUSAGE_THREAD, &usage) != 0)
        return (struct usage){0};
    return last_usage =
               (struct usage){usage.ru_inblock, usage.ru_nvcsw, usage.ru_nivcsw, usage.ru_majflt};
}

int64_t first_block_of(const struct usage *last, const struct usage *now, int64_t bytes)
{
    const int64_t pages = 8192; /* that the read may share with bytes before and behind it */
    int64_t most = (bytes + (now->faults > last->faults ? pages : MAX_READAHEAD_BYTES)) / 512;
    return now->blocks - last->blocks > most ? now->blocks - most : last->blocks;
}

void forget_usage(void)
{
    last_usage = (struct usage){0};
    num_hits = 0;
}
