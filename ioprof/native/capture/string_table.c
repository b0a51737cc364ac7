#include "string_table.h"

struct known_string known_strings[KNOWN_STRINGS];
