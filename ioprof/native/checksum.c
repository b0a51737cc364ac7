/* CRC-32C by eight tables ("slicing-by-8"): about 1 byte per cycle on any processor, without
 * special instructions. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

enum { SLICES = 8 };

static uint32_t tables[SLICES][256];

static void fill_tables(void)
{
    for (uint32_t octet = 0; octet < 256; octet++) {
        uint32_t crc = octet;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
        tables[0][octet] = crc;
    }
    for (int slice = 1; slice < SLICES; slice++) {
        for (uint32_t octet = 0; octet < 256; octet++) {
            uint32_t before = tables[slice - 1][octet];
            tables[slice][octet] = before >> 8 ^ tables[0][before & 0xFF];
        }
    }
}

static uint32_t checksum(const unsigned char *data, size_t size)
{
    uint32_t crc = 0xFFFFFFFFu;
    for (; size >= SLICES; data += SLICES, size -= SLICES) {
        uint32_t low = crc ^ ((uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 |
                              (uint32_t)data[3] << 24);
        crc = tables[7][low & 0xFF] ^ tables[6][low >> 8 & 0xFF] ^ tables[5][low >> 16 & 0xFF] ^
              tables[4][low >> 24] ^ tables[3][data[4]] ^ tables[2][data[5]] ^ tables[1][data[6]] ^
              tables[0][data[7]];
    }
    for (; size > 0; data++, size--)
        crc = tables[0][(crc ^ *data) & 0xFF] ^ crc >> 8;
    return crc ^ 0xFFFFFFFFu;
}

static PyObject *crc32c(PyObject *module, PyObject *argument)
{
    (void)module;
    Py_buffer view;
    if (PyObject_GetBuffer(argument, &view, PyBUF_SIMPLE) != 0)
        return NULL;
    uint32_t crc = 0;
    Py_BEGIN_ALLOW_THREADS crc = checksum(view.buf, (size_t)view.len);
    Py_END_ALLOW_THREADS PyBuffer_Release(&view);
    return PyLong_FromUnsignedLong(crc);
}

static PyMethodDef methods[] = {
    {"crc32c", crc32c, METH_O, "The CRC-32C of a buffer of bytes."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_checksum", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__checksum(void)
{
    fill_tables();
    return PyModule_Create(&definition);
}
