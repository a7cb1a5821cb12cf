/* Which classes a pickle may refer to. */
#include "lib/ckpt/pickle/torch_dtype.h"
#include "lib/ckpt/pickle/pickle_internal.h"

#include <string.h>

#define DCP "torch.distributed.checkpoint."

/* module and names, separated by spaces; "*" is any name */
static const struct {
    const char *module, *names;
} allowed[] = {
    {"torch", "Size Tensor device strided"},
    /* dtypes that are not read: the tensor is named, and as values they do no harm */
    {"torch", "complex32 quint8 qint8 qint32 quint4x2 quint2x4 bits1x8 bits2x4 "
              "bits4x2 bits8 bits16 uint1 uint2 uint3 uint4 uint5 uint6 uint7 int1 int2 int3 int4 "
              "int5 int6 int7"},
    {"torch._utils", "_rebuild_tensor _rebuild_tensor_v2 _rebuild_tensor_v3 _rebuild_parameter "
                     "_rebuild_parameter_with_state _rebuild_wrapper_subclass"},
    {"torch._tensor", "_rebuild_from_type_v2"},
    {"torch.nn.parameter", "Parameter"},
    {"torch.storage", "UntypedStorage TypedStorage"},
    {"torch.serialization", "_get_layout"},
    {"torch.distributed.tensor", "DTensor"},
    {"torch.distributed.tensor._dtensor_spec", "DTensorSpec TensorMeta ShardOrderEntry"},
    {"torch.distributed.tensor.placement_types", "Shard Replicate"},
    {"torch.distributed._tensor.api", "DTensor"}, /* before torch 2.5 */
    {"torch.distributed._tensor.placement_types", "DTensorSpec TensorMeta Shard Replicate"},
    {"torch.distributed.device_mesh", "DeviceMesh"},
    {"torch.distributed._mesh_layout", "_MeshLayout _FlatLayout"},
    {DCP "metadata", "Metadata MetadataIndex TensorStorageMetadata ChunkStorageMetadata "
                     "BytesStorageMetadata TensorProperties StorageMeta _MEM_FORMAT_ENCODING"},
    {DCP "filesystem", "_StorageInfo _StoragePrefix"},
    {DCP "planner", "SavePlan WriteItem WriteItemType TensorWriteData BytesIOWriteData"},
    {"torch.distributed._shard.sharded_tensor.metadata", "TensorProperties MEM_FORMAT_ENCODING"},
    {"megatron.core.dist_checkpointing.strategies.torch", "MCoreMetadata MCoreSavePlan"},
    {"pathlib", "Path PosixPath WindowsPath PurePath PurePosixPath PureWindowsPath"},
    {"pathlib._local", "Path PosixPath WindowsPath PurePath PurePosixPath PureWindowsPath"},
    {"collections", "OrderedDict defaultdict"},
    {"argparse", "Namespace"},
    {"_io", "BytesIO"},
    {"_codecs", "encode"},
    {"builtins", "bytes bytearray set frozenset list tuple dict int float bool str complex slice "
                 "object"},
    {"__builtin__", "bytes bytearray set frozenset list tuple dict int float bool str unicode "
                    "complex slice object"},
    {"copyreg", "_reconstructor"},
    {"copy_reg", "_reconstructor"},
    {"numpy", "ndarray dtype"},
    {"numpy.core.multiarray", "_reconstruct scalar"},
    {"numpy._core.multiarray", "_reconstruct scalar"},
};

/* these run code, open files or access attributes: only an attack refers to them */
static const struct {
    const char *module, *names;
} hostile[] = {
    {"builtins", "eval exec execfile compile open file input breakpoint setattr delattr "
                 "__import__ globals locals vars apply map filter memoryview type super dir "
                 "hasattr help print exit quit __dict__"},
    {"__builtin__", "eval exec execfile compile open file input breakpoint setattr delattr "
                    "__import__ globals locals vars apply map filter type super reload"},
    {"os", "*"},
    {"posix", "*"},
    {"nt", "*"},
    {"posixpath", "*"},
    {"subprocess", "*"},
    {"commands", "*"},
    {"popen2", "*"},
    {"sys", "*"},
    {"importlib", "*"},
    {"imp", "*"},
    {"pkgutil", "*"},
    {"runpy", "*"},
    {"shutil", "*"},
    {"socket", "*"},
    {"pty", "*"},
    {"ctypes", "*"},
    {"_ctypes", "*"},
    {"code", "*"},
    {"codeop", "*"},
    {"bdb", "*"},
    {"pdb", "*"},
    {"timeit", "*"},
    {"cProfile", "*"},
    {"profile", "*"},
    {"doctest", "*"},
    {"trace", "*"},
    {"pickle", "*"},
    {"_pickle", "*"},
    {"cPickle", "*"},
    {"marshal", "*"},
    {"dill", "*"},
    {"cloudpickle", "*"},
    {"joblib", "*"},
    {"types", "FunctionType CodeType MethodType LambdaType"},
    {"operator", "*"},
    {"_operator", "*"},
    {"webbrowser", "*"},
    {"http", "*"},
    {"urllib", "*"},
    {"requests", "*"},
    {"asyncio", "*"},
    {"multiprocessing", "*"},
    {"threading", "*"},
    {"pip", "*"},
    {"setuptools", "*"},
    {"distutils", "*"},
    {"tempfile", "*"},
    {"io", "open FileIO"},
    {"_io", "open FileIO"},
    {"codecs", "open"},
    {"platform", "popen"},
    {"uuid", "_get_command_stdout"},
    {"pydoc", "*"},
    {"linecache", "*"},
    {"zipimport", "*"},
    {"site", "*"},
    {"venv", "*"},
    {"ensurepip", "*"},
    {"idlelib", "*"},
    {"lib2to3", "*"},
    {"cgitb", "*"},
    {"test.support", "*"},
    {"_aix_support", "*"},
    {"_osx_support", "*"},
    {"_pyrepl", "*"},
    {"_thread", "*"},
    {"_posixsubprocess", "*"},
    {"_winapi", "*"},
    {"_socket", "*"},
    {"atexit", "*"},
    {"gc", "*"},
    {"shelve", "*"},
    {"sqlite3", "*"},
    {"cffi", "*"},
    {"httplib", "*"},
    {"urllib2", "*"},
    {"aiohttp", "*"},
    {"httpx", "*"},
    {"smtplib", "*"},
    {"ftplib", "*"},
    {"telnetlib", "*"},
    {"imaplib", "*"},
    {"xmlrpc", "*"},
    {"ssl", "*"},
    {"zipfile", "*"},
    {"tarfile", "*"},
    {"glob", "*"},
    {"fileinput", "*"},
    {"mmap", "*"},
    {"concurrent", "*"},
    {"unittest", "*"},
    {"logging.config", "*"},
    {"logging", "FileHandler"},
    {"logging.handlers", "*"},
    {"signal", "signal"},
    {"torch", "load save from_file compile UntypedStorage.from_file"},
    {"torch.serialization", "load save"},
    {"torch.storage", "_load_from_bytes UntypedStorage.from_file"},
    {"torch.ops", "*"},
    {"torch.classes", "*"},
    {"torch.utils._config_module", "*"},
    {"torch.utils.data.datapipes", "*"},
    {"torch.hub", "*"},
    {"torch.jit", "*"},
    {"torch.package", "*"},
    {"torch.utils.cpp_extension", "*"},
    {"torch.utils.collect_env", "*"},
    {"torch.utils.bottleneck", "*"},
    {"torch._inductor.codecache", "*"},
    {"torch._dynamo.guards", "*"},
    {"torch.fx.experimental.symbolic_shapes", "ShapeEnv.evaluate_guards_expression"},
    {"pathlib", "*"},
    {"numpy", "load loadtxt genfromtxt fromfile save savez savez_compressed savetxt"},
    {"numpy.lib", "*"},
    {"numpy.distutils", "*"},
    {"numpy.testing", "*"},
    {"numpy.f2py", "*"},
    {"pandas", "read_pickle"},
    {"yaml", "load unsafe_load full_load"},
    {"hydra.utils", "*"},
    {"hydra._internal", "*"},
};

/* Compares the first byte first, as a pickle may refer to a hundred thousand classes. */
static bool text_is(const char *s, size_t len, const char *want)
{
    return len && *s == *want && strlen(want) == len && memcmp(s, want, len) == 0;
}

static bool list_has(const char *names, const char *s, size_t len)
{
    if (strcmp(names, "*") == 0)
        return true;
    for (const char *at = names; *at;) {
        size_t n = strcspn(at, " ");
        if (n == len && memcmp(at, s, len) == 0)
            return true;
        at += n + (at[n] == ' ');
    }
    return false;
}

/* Is the module the package or inside it: "os" or "os.path"? */
static bool in_package(const char *module, size_t len, const char *package)
{
    size_t n = strlen(package);
    return len >= n && memcmp(module, package, n) == 0 && (len == n || module[n] == '.');
}

/*
 * Does a name "a.b.c" look inside of something it should not: a module that a harmless one has
 * imported (torch.serialization's os.system), or Python's double-underscore attributes? Every part
 * but the last is looked into.
 */
static bool reaches_for(const char *name, size_t len)
{
    for (const char *at = name, *end = name + len; at < end;) {
        const char *dot = memchr(at, '.', (size_t)(end - at));
        size_t n = (size_t)((dot ? dot : end) - at);
        if ((at > name || dot) && n >= 2 && memcmp(at, "__", 2) == 0)
            return true;
        if (dot && (text_is(at, n, "builtins") || text_is(at, n, "__builtin__")))
            return true;
        for (size_t i = 0; dot && i < sizeof hostile / sizeof *hostile; i++)
            if (strcmp(hostile[i].names, "*") == 0 && text_is(at, n, hostile[i].module))
                return true;
        at += n + 1;
    }
    return false;
}

/* Enum members that every .metadata contains. */
static bool is_known_member(const char *module, size_t module_len, const char *name, size_t len)
{
    static const struct {
        const char *module, *name;
    } enums[] = {{DCP "metadata", "_MEM_FORMAT_ENCODING"},
                 {DCP "planner", "WriteItemType"},
                 {"torch.distributed._shard.sharded_tensor.metadata", "MEM_FORMAT_ENCODING"}};
    const char *dot = memchr(name, '.', len);
    for (size_t i = 0; dot && i < sizeof enums / sizeof *enums; i++)
        if (text_is(module, module_len, enums[i].module) &&
            text_is(name, (size_t)(dot - name), enums[i].name) &&
            !memchr(dot + 1, '.', len - (size_t)(dot + 1 - name)))
            return true;
    return false;
}

enum pickle_verdict ckpt_judge_global(const struct ckpt_node *node)
{
    size_t module_len = node->n, name_len;
    const char *module = node->text, *name = ckpt_global_name(node, &name_len);
    for (size_t i = 0; i < sizeof allowed / sizeof *allowed; i++)
        if (text_is(module, module_len, allowed[i].module) &&
            list_has(allowed[i].names, name, name_len))
            return PICKLE_ALLOWED;
    if (text_is(module, module_len, "torch") &&
        (ckpt_dtype_of_torch(name, name_len) || ckpt_dtype_of_storage(name, name_len)))
        return PICKLE_ALLOWED;
    if ((text_is(module, module_len, "builtins") || text_is(module, module_len, "__builtin__")) &&
        text_is(name, name_len, "getattr"))
        return PICKLE_GETATTR;
    if (text_is(module, module_len, "_operator") && text_is(name, name_len, "or_"))
        return PICKLE_OR;
    if (is_known_member(module, module_len, name, name_len))
        return PICKLE_ALLOWED;
    if (reaches_for(name, name_len))
        return PICKLE_HOSTILE;
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++) {
        bool whole = strcmp(hostile[i].names, "*") == 0;
        if (whole ? in_package(module, module_len, hostile[i].module)
                  : text_is(module, module_len, hostile[i].module) &&
                        list_has(hostile[i].names, name, name_len))
            return PICKLE_HOSTILE;
    }
    return PICKLE_UNKNOWN;
}
