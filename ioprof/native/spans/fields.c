#include "fields.h"

#include <stdint.h>

#define FIELD(name, low, high) \
    {#name, offsetof(struct ioprof_record, name), sizeof((struct ioprof_record){0}.name), low, high}

struct field fields[] = {
    FIELD(step, INT32_MIN, INT32_MAX),   FIELD(batch, INT64_MIN, INT64_MAX),
    FIELD(bytes, INT64_MIN, INT64_MAX),  FIELD(file, INT32_MIN, INT32_MAX),
    FIELD(offset, INT64_MIN, INT64_MAX), FIELD(stream, INT16_MIN, INT16_MAX),
    FIELD(source, 0, SOURCE_PIPE),
};
_Static_assert(sizeof fields / sizeof *fields == NUM_FIELDS, "as many fields as fields.h says");

long long load_field(const struct ioprof_record *record, const struct field *field)
{
    const char *place = (const char *)record + field->offset;
    switch (field->bytes) {
    case 8:
        return *(const int64_t *)place;
    case 4:
        return *(const int32_t *)place;
    case 2:
        return *(const int16_t *)place;
    default:
        return *(const uint8_t *)place;
    }
}

int store_field(struct ioprof_record *record, const struct field *field, PyObject *value)
{
    int overflow = 0;
    long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (number == -1 && !overflow && PyErr_Occurred())
        return -1;
    if (overflow || number < field->low || number > field->high) {
        PyErr_Format(PyExc_ValueError, "%s=%R is not within %lld..%lld", field->name, value,
                     field->low, field->high);
        return -1;
    }
    char *place = (char *)record + field->offset;
    switch (field->bytes) {
    case 8:
        *(int64_t *)place = number;
        break;
    case 4:
        *(int32_t *)place = (int32_t)number;
        break;
    case 2:
        *(int16_t *)place = (int16_t)number;
        break;
    default:
        *(uint8_t *)place = (uint8_t)number;
    }
    return 0;
}
