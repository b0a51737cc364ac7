/* One uncommon way to read a file or to go on as another program. Arguments: the way, and a file.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char bytes[1 << 16];

/* Moves the file through a pipe without having its bytes, and gives them away. */
static int splice_away(const char *path)
{
    int file = open(path, O_RDONLY), nowhere = open("/dev/null", O_WRONLY), ends[2];
    ssize_t moved;
    if (file < 0 || nowhere < 0 || pipe(ends) != 0)
        return 1;
    while ((moved = splice(file, NULL, ends[1], NULL, sizeof bytes, 0)) > 0)
        if (splice(ends[0], NULL, nowhere, NULL, (size_t)moved, 0) != moved)
            return 1;
    return moved != 0;
}

/* Reads half of the file, lets a child that has the same descriptor read a quarter, and reads the
 * rest. */
static int share_with_child(const char *path, int by_stream)
{
    struct stat status;
    char command[128];
    int file = open(path, O_RDONLY);
    if (file < 0 || fstat(file, &status) != 0 ||
        read(file, bytes, (size_t)status.st_size / 2) != status.st_size / 2)
        return 1;
    snprintf(command, sizeof command, "dd bs=%ld count=1 <&%d of=/dev/null 2>/dev/null",
             (long)status.st_size / 4, file);
    if (by_stream) {
        FILE *child = popen(command, "r");
        if (child == NULL || pclose(child) != 0)
            return 1;
    } else if (system(command) != 0) {
        return 1;
    }
    return read(file, bytes, sizeof bytes) < 0;
}

int main(int count, char **arguments)
{
    char *nothing[] = {NULL};
    if (count != 3)
        return 2;
    const char *way = arguments[1], *path = arguments[2];
    int file = open(path, O_RDONLY);
    if (file < 0 || read(file, bytes, 1) != 1 || close(file) != 0)
        return 1;
    if (strcmp(way, "splice") == 0)
        return splice_away(path);
    if (strcmp(way, "popen") == 0 || strcmp(way, "system") == 0)
        return share_with_child(path, way[0] == 'p');
    if (strcmp(way, "execl") == 0)
        execl("/bin/cat", "cat", path, path, NULL);
    if (strcmp(way, "execlp") == 0)
        execlp("cat", "cat", path, path, NULL);
    if (strcmp(way, "execle") == 0)
        execle("/bin/cat", "cat", path, path, NULL, nothing);
    return 1;
}
