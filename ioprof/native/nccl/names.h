/* What NCCL's names of operations and of data types stand for. */
#ifndef IOPROF_NCCL_NAMES_H
#define IOPROF_NCCL_NAMES_H

#include "collective_format.h"

#pragma GCC visibility push(hidden)

enum ioprof_function function_of_name(const char *name);

/* By its number in version 1 of the interface. */
enum ioprof_function function_of_number(uint8_t number);

/* Bytes of `count` elements; -1: not known. */
int64_t bytes_of_name(const char *datatype, size_t count);
int64_t bytes_of_number(uint8_t datatype, size_t count);

#pragma GCC visibility pop

#endif
