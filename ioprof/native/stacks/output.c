#include "output.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

static void write_all(struct output *output, const uint8_t *bytes, size_t length)
{
    while (length && !output->error) {
        ssize_t written = write(output->descriptor, bytes, length);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0) {
            output->error = written < 0 ? errno : ENOSPC;
            return;
        }
        bytes += written;
        length -= (size_t)written;
    }
}

static void append(struct output *output, const void *bytes, size_t length)
{
    if (length > BUFFER_BYTES - output->used) {
        write_all(output, output->buffer, output->used);
        output->used = 0;
    }
    if (length > BUFFER_BYTES) {
        write_all(output, bytes, length);
        return;
    }
    memcpy(output->buffer + output->used, bytes, length);
    output->used += length;
}

void write_record(struct output *output, enum record_kind kind, const struct piece *pieces,
                  unsigned count)
{
    uint32_t header[2] = {kind, 0};
    for (unsigned i = 0; i < count; i++)
        header[1] += (uint32_t)pieces[i].length;
    append(output, header, sizeof header);
    for (unsigned i = 0; i < count; i++)
        append(output, pieces[i].bytes, pieces[i].length);
}

static void write_samples(struct output *output)
{
    if (output->samples)
        write_record(output, SAMPLES_RECORD,
                     &(struct piece){output->pending, output->samples * sizeof *output->pending},
                     1);
    output->samples = 0;
}

void write_sample(struct output *output, struct sample sample)
{
    if (output->samples == SAMPLES_AT_ONCE)
        write_samples(output);
    output->pending[output->samples++] = sample;
}

void flush(struct output *output)
{
    write_samples(output);
    write_all(output, output->buffer, output->used);
    output->used = 0;
}
