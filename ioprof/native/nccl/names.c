#include "names.h"

#include <string.h>

#define MOST_BYTES ((uint64_t)1 << 55)

static const char *const names[] = {FUNCTION_NAMES};

enum ioprof_function function_of_name(const char *name)
{
    if (name != NULL)
        for (unsigned function = 1; function < sizeof names / sizeof *names; function++)
            if (strcmp(name, names[function]) == 0)
                return (enum ioprof_function)function;
    return FUNCTION_UNKNOWN;
}

enum ioprof_function function_of_number(uint8_t number)
{
    return number < FUNCTION_RECV ? (enum ioprof_function)(number + 1) : FUNCTION_UNKNOWN;
}

static int64_t product(size_t count, unsigned bytes)
{
    return bytes == 0 || count >= MOST_BYTES / bytes ? -1 : (int64_t)(count * bytes);
}

/* A name ends in the number of bits, or in that and the layout of a float of 8 bits
 * (ncclFloat8e4m3). The types that NCCL itself has no name for (ncclUint8, and those floats in some
 * versions), it calls Unknown; they all have one byte. */
int64_t bytes_of_name(const char *datatype, size_t count)
{
    unsigned bits = 0;
    if (datatype == NULL)
        return -1;
    if (strcmp(datatype, "Unknown") == 0)
        return product(count, 1);
    const char *digit = datatype + strcspn(datatype, "0123456789");
    for (; *digit >= '0' && *digit <= '9' && bits < 1000; digit++)
        bits = bits * 10 + (unsigned)(*digit - '0');
    return product(count, bits / 8);
}

int64_t bytes_of_number(uint8_t datatype, size_t count)
{
    static const uint8_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return datatype < sizeof bytes ? product(count, bytes[datatype]) : -1;
}
