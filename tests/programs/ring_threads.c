/* Threads that record through the ring without a lock between them. Arguments: FILE THREADS SPANS
 * ROUNDS.
 *
 * In every round THREADS threads begin together, write a string and SPANS spans each, and end. */
#include "ring.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static struct ioprof_ring ring;
static __thread struct ioprof_writer writer;
static int num_spans;

static void *record(void *argument)
{
    int number = (int)(intptr_t)argument;
    char path[32];
    int32_t file =
        ring_string(&ring, &writer, path, (size_t)snprintf(path, sizeof path, "/%d", number));
    for (int place = 0; place < num_spans; place++) {
        struct ioprof_record span = IOPROF_EMPTY_RECORD;
        span.start_ns = ring_now();
        span.end_ns = ring_now();
        span.kind = 5;
        span.step = number;
        span.batch = place;
        span.file = file;
        ring_write(&ring, &writer, &span);
    }
    return NULL;
}

int main(int count, char **arguments)
{
    struct ioprof_file_header header = {.magic = IOPROF_MAGIC_BYTES,
                                        .version = IOPROF_FORMAT_VERSION,
                                        .record_bytes = IOPROF_RECORD_BYTES,
                                        .chunk_bytes = IOPROF_CHUNK_BYTES,
                                        .header_bytes = IOPROF_HEADER_BYTES};
    if (count != 5 || ring_setup() != 0 || ring_open(&ring, arguments[1], &header) != 0)
        return 1;
    int num_threads = atoi(arguments[2]), num_rounds = atoi(arguments[4]);
    num_spans = atoi(arguments[3]);
    for (int round = 0; round < num_rounds; round++) {
        pthread_t threads[64];
        for (int place = 0; place < num_threads; place++)
            pthread_create(&threads[place], NULL, record,
                           (void *)(intptr_t)(round * num_threads + place));
        for (int place = 0; place < num_threads; place++)
            pthread_join(threads[place], NULL);
    }
    ring_close(&ring);
    return 0;
}
