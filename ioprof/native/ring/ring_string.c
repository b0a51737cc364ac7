#include "ring.h"

static const char ellipsis[] = "\xe2\x80\xa6";

/* How much of an overlong string is kept: never a part of a UTF-8 character, if it is UTF-8. */
static size_t cut_length(const char *text)
{
    size_t length = IOPROF_STRING_BYTES - (sizeof ellipsis - 1);
    for (int step = 0; step < 3 && (text[length] & 0xc0) == 0x80; step++)
        length--;
    return length;
}

int32_t ring_string(struct ioprof_ring *ring, struct ioprof_writer *writer, const char *text,
                    size_t length)
{
    bool whole = length <= IOPROF_STRING_BYTES;
    size_t kept = whole ? length : cut_length(text);
    size_t total = whole ? length : kept + sizeof ellipsis - 1;
    uint64_t slots = 1 + (total + IOPROF_RECORD_BYTES - 1) / IOPROF_RECORD_BYTES;
    struct ioprof_record *record = ring_reserve(ring, writer, slots);
    if (record == NULL)
        return -1;
    int32_t number = atomic_fetch_add(&ring->strings, 1);
    *record = IOPROF_EMPTY_RECORD;
    record->bytes = (int64_t)total;
    record->file = number;
    memcpy(record + 1, text, kept);
    if (!whole)
        memcpy((char *)(record + 1) + kept, ellipsis, sizeof ellipsis - 1);
    ring_publish(writer, slots);
    return number;
}
