#include "decimal.h"

char *append_decimal(char *place, uint64_t number)
{
    char digits[20];
    int count = 0;
    do
        digits[count++] = (char)('0' + number % 10);
    while ((number /= 10) != 0);
    while (count > 0)
        *place++ = digits[--count];
    return place;
}

uint64_t next_decimal(const char **text, const char *end)
{
    uint64_t number = 0;
    while (*text < end && (**text < '0' || **text > '9'))
        ++*text;
    for (; *text < end && **text >= '0' && **text <= '9'; ++*text)
        number = number * 10 + (uint64_t)(**text - '0');
    return number;
}
