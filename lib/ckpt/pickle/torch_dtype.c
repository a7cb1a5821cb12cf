/* Translates names of torch's dtypes and storages to ours and back. */
#include "lib/ckpt/pickle/torch_dtype.h"

#include "lib/ckpt/pickle/pickle.h"

static const struct {
    enum s2s_dtype dtype;
    const char *name, *storage;
} dtypes[] = {
    {S2S_F32, "float32", "FloatStorage"},
    {S2S_F64, "float64", "DoubleStorage"},
    {S2S_F16, "float16", "HalfStorage"},
    {S2S_BF16, "bfloat16", "BFloat16Storage"},
    {S2S_I64, "int64", "LongStorage"},
    {S2S_I32, "int32", "IntStorage"},
    {S2S_I16, "int16", "ShortStorage"},
    {S2S_I8, "int8", "CharStorage"},
    {S2S_U8, "uint8", "ByteStorage"},
    {S2S_BOOL, "bool", "BoolStorage"},
    {S2S_C64, "complex64", "ComplexFloatStorage"},
    {S2S_C128, "complex128", "ComplexDoubleStorage"},
    {S2S_F8_E4M3, "float8_e4m3fn", NULL},
    {S2S_F8_E5M2, "float8_e5m2", NULL},
    {S2S_F8_E8M0, "float8_e8m0fnu", NULL},
    {S2S_F8_E4M3FNUZ, "float8_e4m3fnuz", NULL},
    {S2S_F8_E5M2FNUZ, "float8_e5m2fnuz", NULL},
    {S2S_F4_E2M1FN_X2, "float4_e2m1fn_x2", NULL},
    {S2S_U16, "uint16", NULL},
    {S2S_U32, "uint32", NULL},
    {S2S_U64, "uint64", NULL},
    /* older spellings of the same types */
    {S2S_F32, "float", NULL},
    {S2S_F64, "double", NULL},
    {S2S_F16, "half", NULL},
    {S2S_I64, "long", NULL},
    {S2S_I32, "int", NULL},
    {S2S_I16, "short", NULL},
};

enum { N_DTYPES = sizeof dtypes / sizeof dtypes[0] };

const char *ckpt_torch_dtype(enum s2s_dtype dtype)
{
    for (int i = 0; i < N_DTYPES; i++)
        if (dtypes[i].dtype == dtype)
            return dtypes[i].name;
    S2S_BUG("dtype %d has no name in torch", (int)dtype);
}

const char *ckpt_torch_storage(enum s2s_dtype dtype)
{
    for (int i = 0; i < N_DTYPES; i++)
        if (dtypes[i].dtype == dtype)
            return dtypes[i].storage;
    return NULL;
}

enum s2s_dtype ckpt_dtype_of_torch(const char *name, size_t len)
{
    for (int i = 0; i < N_DTYPES; i++)
        if (strlen(dtypes[i].name) == len && memcmp(dtypes[i].name, name, len) == 0)
            return dtypes[i].dtype;
    return S2S_DTYPE_NONE;
}

enum s2s_dtype ckpt_dtype_of_global(const struct ckpt_node *node)
{
    size_t len;
    if (!node || node->kind != CKPT_GLOBAL || !ckpt_is_of(node, "torch"))
        return S2S_DTYPE_NONE;
    const char *name = ckpt_global_name(node, &len);
    return ckpt_dtype_of_torch(name, len);
}

enum s2s_dtype ckpt_dtype_of_storage(const char *name, size_t len)
{
    for (int i = 0; i < N_DTYPES; i++)
        if (dtypes[i].storage && strlen(dtypes[i].storage) == len &&
            memcmp(dtypes[i].storage, name, len) == 0)
            return dtypes[i].dtype;
    return S2S_DTYPE_NONE;
}
