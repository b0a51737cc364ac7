#include "file_systems.h"

#include "file_system_table.h"
#include "guard.h"

#include <sys/statfs.h>

#define NUM_FILE_SYSTEMS 64
#define KEY_BEING_FILLED UINT64_MAX

static struct file_system file_systems[NUM_FILE_SYSTEMS];
struct file_system unlisted_file_system = {.accounting = ACCOUNTING_UNKNOWN};
bool may_use_nowait = true;

static void examine(int descriptor, struct file_system *system)
{
#define FILE_SYSTEM(magic, accounting, nowait) {magic, accounting, nowait},
    static const struct {
        unsigned long magic;
        enum accounting accounting;
        bool nowait;
    } table[] = {FILE_SYSTEM_TABLE(FILE_SYSTEM)};
#undef FILE_SYSTEM
    struct statfs status;
    atomic_store_explicit(&system->accounting, ACCOUNTING_UNKNOWN, memory_order_relaxed);
    if (fstatfs(descriptor, &status) != 0)
        return;
    for (size_t place = 0; place < sizeof table / sizeof *table; place++)
        if ((unsigned long)status.f_type == table[place].magic) {
            atomic_store_explicit(&system->accounting, (int)table[place].accounting,
                                  memory_order_relaxed);
            atomic_store_explicit(&system->supports_nowait, may_use_nowait && table[place].nowait,
                                  memory_order_relaxed);
        }
}

HOT struct file_system *file_system_of(int descriptor, dev_t device)
{
    for (int place = 0; place < NUM_FILE_SYSTEMS; place++) {
        struct file_system *system = &file_systems[place];
        uint64_t key = atomic_load_explicit(&system->key, memory_order_acquire);
        if (key == (uint64_t)device + 1)
            return system;
        if (key == 0 && atomic_compare_exchange_strong(&system->key, &key, KEY_BEING_FILLED)) {
            examine(descriptor, system);
            atomic_store_explicit(&system->key, (uint64_t)device + 1, memory_order_release);
            return system;
        }
    }
    return &unlisted_file_system;
}
