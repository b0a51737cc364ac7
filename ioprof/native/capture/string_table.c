#include "string_table.h"

table_pages known_strings;
