/* The machine that reads pickles as data. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "lib/base/base.h"
#include "lib/ckpt/pickle/pickle.h"

static size_t most_shown = 1000;

/* the value of a pickle as compact JSON, or "code: text" */
static char *shown_tree(struct ckpt_pickle *pickle, int rc, const struct s2s_error *err)
{
    if (rc < 0)
        return s2s_xasprintf("%s: %s", s2s_errc_name(err->code), err->text);
    json_t *json = ckpt_node_json(
        pickle->root, &(struct ckpt_json_left){.nodes = most_shown, .text_bytes = most_shown});
    char *text = json_dumps(json, JSON_ENCODE_ANY | JSON_COMPACT | JSON_SORT_KEYS);
    json_decref(json);
    ckpt_pickle_release(pickle);
    return text;
}

/* the same, whether it is in memory or in a file */
static char *shown(const char *bytes, size_t len, enum ckpt_pickle_mode mode)
{
    struct ckpt_pickle pickle;
    struct s2s_error err = S2S_ERROR_INIT;
    FILE *file = tmpfile();
    assert_int_equal(fwrite("12", 1, 2, file), 2);
    assert_int_equal(fwrite(bytes, 1, len, file), len);
    fflush(file);
    int rc = ckpt_pickle_parse(&pickle, bytes, len, mode, &err);
    char *text = shown_tree(&pickle, rc, &err);
    err = (struct s2s_error)S2S_ERROR_INIT;
    rc = ckpt_pickle_parse_file(&pickle, fileno(file), 2, len, mode, NULL, &err);
    char *other = shown_tree(&pickle, rc, &err);
    assert_string_equal(text, other);
    free(other);
    fclose(file);
    return text;
}

#define SHOWS(bytes, want) check_shown(bytes "", sizeof(bytes) - 1, CKPT_STRICT, want)
#define SHOWS_OPEN(bytes, want) check_shown(bytes "", sizeof(bytes) - 1, CKPT_OPEN, want)

static void check_shown(const char *bytes, size_t len, enum ckpt_pickle_mode mode, const char *want)
{
    char *text = shown(bytes, len, mode);
    assert_string_equal(text, want);
    free(text);
}

static void refuses(const char *bytes, size_t len, enum ckpt_pickle_mode mode, const char *part)
{
    char *text = shown(bytes, len, mode);
    if (!strstr(text, part))
        fail_msg("expected \"%s\" in: %s", part, text);
    free(text);
}

#define REFUSES(bytes, part) refuses(bytes "", sizeof(bytes) - 1, CKPT_STRICT, part)
#define REFUSES_OPEN(bytes, part) refuses(bytes "", sizeof(bytes) - 1, CKPT_OPEN, part)

#define DIGITS_62 "99999999999999999999999999999999999999999999999999999999999999"

static void plain_values_of_all_protocols(void **state)
{
    SHOWS("N.", "null");
    SHOWS("\x80\x02\x88.", "true");
    SHOWS("I00\n.", "false");
    SHOWS("I-12\n.", "-12");
    SHOWS("L123L\n.", "123");
    SHOWS("K\xff.", "255");
    SHOWS("M\x01\x02.", "513");
    SHOWS("J\xfe\xff\xff\xff.", "-2");
    SHOWS("\x8a\x01\xff.", "-1");
    SHOWS("\x8a\x00.", "0");
    SHOWS("\x8a\x05\0\0\0\0\x01.", "4294967296");
    SHOWS("\x8a\x09\0\0\0\0\0\0\0\0\x40.", "\"1180591620717411303424\"");
    SHOWS("\x8a\x09\0\0\0\0\0\0\0\0\xc0.", "\"-1180591620717411303424\"");
    SHOWS("L1180591620717411303424L\n.", "\"1180591620717411303424\"");
    SHOWS("L-1180591620717411303424L\n.", "\"-1180591620717411303424\"");
    SHOWS("I9223372036854775808\n.", "\"9223372036854775808\"");
    SHOWS("I-9223372036854775809\n.", "\"-9223372036854775809\"");
    SHOWS("L-" DIGITS_62 "L\n.", "\"-" DIGITS_62 "\"");
    SHOWS("F2.5\n.", "2.5");
    SHOWS("G@\x04\0\0\0\0\0\0.", "2.5");
    SHOWS("V\\u00e9\\U0001F600x\n.", "\"\xc3\xa9\xf0\x9f\x98\x80x\"");
    SHOWS("V\\\\u0041\\\\\\u0041\n.", "\"\\\\\\\\u0041\\\\\\\\A\"");
    SHOWS("S'a\\x41\\n\\'q'\n.", "\"aA\\n'q\"");
    SHOWS("\x8c\x02hi.", "\"hi\"");
    SHOWS("X\x02\0\0\0hi.", "\"hi\"");
    SHOWS("C\x02hi.", "\"(2 bytes)\"");
}

static void containers_and_memo(void **state)
{
    SHOWS("](K\x01K\x02"
          "e.",
          "[1,2]");
    SHOWS("(K\x01K\x02t.", "[1,2]");
    SHOWS("K\x01K\x02K\x03\x87.", "[1,2,3]");
    SHOWS("}(\x8c\x01"
          "aK\x01\x8c\x01"
          "bK\x02u.",
          "{\"a\":1,\"b\":2}");
    SHOWS("(K\x01K\x02l.", "[1,2]");
    SHOWS("(\x8c\x01"
          "aK\x01"
          "d.",
          "{\"a\":1}");
    SHOWS("\x8f(K\x01\x90.", "[1]");
    SHOWS("K\x07q\0"
          "h\0\x86.",
          "[7,7]");
    SHOWS("\x80\x04K\x07\x94h\0\x86.", "[7,7]");
    SHOWS("K\x01K\x02"
          "0.",
          "1");
    SHOWS("K\x01(K\x02"
          "1.",
          "1");
    /* a dict in a key is not spelled out: each level of such keys would double the text */
    SHOWS("}}K\x01s.", "{\"...\":1}");
    /* a dict whose keys are numbers */
    SHOWS("}K\x01K\x02s.", "{\"1\":2}");
}

static void known_calls_become_data(void **state)
{
    SHOWS("ctorch\nSize\n((K\x02K\x03ttR.", "[2,3]");
    SHOWS("ccollections\nOrderedDict\n)R\x8c\x01"
          "aK\x01s.",
          "{\"a\":1}");
    SHOWS("ccollections\nOrderedDict\n](]\x8c\x01"
          "aaK\x01"
          "ae\x85R.",
          "{\"a\":1}");
    SHOWS("c__builtin__\nset\n](K\x01"
          "e\x85R.",
          "[1]");
    SHOWS("c_codecs\nencode\nX\x04\0\0\0\xc3\xa9\xc2\x80X\x06\0\0\0latin1\x86R.", "\"(2 bytes)\"");
    SHOWS("cargparse\nNamespace\n)\x81}\x8c\x01"
          "aK\x01sb.",
          "{\"a\":1}");
    SHOWS("ctorch\nbfloat16\n.", "\"torch.bfloat16\"");
}

static void rarer_opcodes_give_what_pickle_gives(void **state)
{
    SHOWS("K\x07p0\n0g0\n.", "7");
    SHOWS("K\x07"
          "2\x86.",
          "[7,7]");
    SHOWS("\x80\x04(K\x01K\x02\x91.", "[1,2]");
    SHOWS("cargparse\nNamespace\n)}\x8c\x01"
          "aK\x01s\x92.",
          "{\"a\":1}");
    SHOWS("B\x02\0\0\0hi.", "\"(2 bytes)\"");
    SHOWS("\x8e\x02\0\0\0\0\0\0\0hi.", "\"(2 bytes)\"");
    SHOWS("\x96\x02\0\0\0\0\0\0\0hi.", "\"(2 bytes)\"");
    SHOWS("G\x7f\xf0\0\0\0\0\0\0.", "\"inf\"");
    SHOWS("G\xff\xf0\0\0\0\0\0\0.", "\"-inf\"");
    SHOWS("G\x7f\xf8\0\0\0\0\0\0.", "\"nan\"");
    SHOWS_OPEN("cmymodule\nList\n)R(K\x01"
               "e.",
               "{\"class\":\"mymodule.List\",\"contents\":[1]}");
    SHOWS_OPEN("cmymodule\nDict\n)RK\x01K\x02s.",
               "{\"class\":\"mymodule.Dict\",\"contents\":{\"1\":2}}");
    SHOWS("ccollections\ndefaultdict\n(c__builtin__\nlist\n}\x8c\x01"
          "aK\x01stR.",
          "{\"a\":1}");
    SHOWS("c__builtin__\nbytes\n(X\x02\0\0\0\xc3\xa9X\x06\0\0\0latin1tR.", "\"(1 bytes)\"");
    SHOWS("cbuiltins\nbytearray\nC\x02hi\x85R.", "\"(2 bytes)\"");
    SHOWS("cbuiltins\nbytes\nK\x05\x85R.", "{\"args\":[5],\"class\":\"builtins.bytes\"}");
    SHOWS("cbuiltins\nint\nK\x05\x85R.", "{\"args\":[5],\"class\":\"builtins.int\"}");
    SHOWS("ctorch._tensor\n_rebuild_from_type_v2\n(ccollections\nOrderedDict\n"
          "ctorch.nn.parameter\nParameter\n)}tR.",
          "{}");
}

/* scalar(dtype of two letters and a byte order, bytes) */
#define NUMPY(code, order, bytes) \
    "cnumpy._core.multiarray\nscalar\n(cnumpy\ndtype\n(X\x02\0\0\0" code \
    "\x89\x88tR(K\x03X\x01\0\0\0" order "NNNtbC" bytes "tR."

static void numbers_of_numpy_are_numbers(void **state)
{
    SHOWS(NUMPY("i8", "<", "\x08\x03\0\0\0\0\0\0\0"), "3");
    SHOWS(NUMPY("i8", "<", "\x08\xfe\xff\xff\xff\xff\xff\xff\xff"), "-2");
    SHOWS(NUMPY("i2", "<", "\x02\xfe\xff"), "-2");
    SHOWS(NUMPY("u4", "<", "\x04\xff\xff\xff\xff"), "4294967295");
    SHOWS(NUMPY("b1", "|", "\x01\x01"), "true");
    SHOWS(NUMPY("f4", "<", "\x04\0\0\x20\x40"), "2.5");
    SHOWS(NUMPY("f8", "<", "\x08\0\0\0\0\0\0\x04\x40"), "2.5");
    /* protocol 2 spells the bytes as Latin-1 text */
    SHOWS("cnumpy._core.multiarray\nscalar\n(cnumpy\ndtype\n(X\x02\0\0\0i4\x89\x88tR("
          "K\x03X\x01\0\0\0<NNNtb"
          "c_codecs\nencode\n(X\x07\0\0\0\xc3\xbe\xc2\x80\xc3\xbf\x7fX\x06\0\0\0latin1tRtR.",
          "2147451134");
    /* what does not fit and what is of the other byte order stays a call */
    const char *others[] = {NUMPY("u8", "<", "\x08\xff\xff\xff\xff\xff\xff\xff\xff"),
                            NUMPY("i8", ">", "\x08\x03\0\0\0\0\0\0\0")};
    for (size_t i = 0; i < 2; i++) {
        char *text = shown(others[i], sizeof NUMPY("i8", "<", "\x08........") - 1, CKPT_STRICT);
        assert_non_null(strstr(text, "scalar"));
        free(text);
    }
}

static void unknown_classes_are_refused_or_opaque(void **state)
{
    REFUSES("\x80\x02"
            "cmymodule\nThing\n)R.",
            "class mymodule.Thing is not known here (byte 2)");
    SHOWS_OPEN("cmymodule\nThing\n)R.", "{\"class\":\"mymodule.Thing\"}");
    SHOWS_OPEN("cmymodule\nThing\nK\x01\x85R}\x8c\x01"
               "aK\x02sb.",
               "{\"args\":[1],\"class\":\"mymodule.Thing\",\"state\":{\"a\":2}}");
}

static void hostile_classes_are_always_refused(void **state)
{
    REFUSES_OPEN("cos\nsystem\n(X\x02\0\0\0idtR.", "hostile: it wants to call os.system");
    REFUSES_OPEN("cposix\nsystem\n.", "hostile");
    REFUSES_OPEN("cos.path\njoin\n.", "hostile");
    REFUSES_OPEN("c__builtin__\neval\n.", "hostile");
    REFUSES_OPEN("cbuiltins\ngetattr\n.", "hostile");
    REFUSES_OPEN("csubprocess\nPopen\n.", "hostile");
    REFUSES_OPEN("\x80\x04\x8c\x02os\x8c\x06system\x93.", "hostile");
    REFUSES_OPEN("coperator\nattrgetter\n.", "hostile");
    REFUSES_OPEN("cnumpy\nload\n.", "hostile: it wants to call numpy.load");
    REFUSES_OPEN("ctorch.serialization\nload\n.", "hostile");
    REFUSES_OPEN("ctorch.utils.collect_env\nrun\n.", "hostile");
    REFUSES_OPEN("ctorch._inductor.codecache\ncompile_file\n.", "hostile");
    REFUSES_OPEN("cpydoc\npipepager\n.", "hostile");
    REFUSES_OPEN("cidlelib.pyshell\nModifiedInterpreter.runcode\n.", "hostile");
    REFUSES_OPEN("csqlite3\nconnect\n.", "hostile");
    REFUSES_OPEN("cpathlib\nPath.unlink\n.", "hostile");
    REFUSES_OPEN("ctorch\nUntypedStorage.from_file\n.", "hostile");
    REFUSES_OPEN("cnumpy.lib.npyio\nload\n.", "hostile");
    REFUSES_OPEN("clogging.config\nfileConfig\n.", "hostile");
    /* what a harmless module has imported, and what Python keeps to itself */
    REFUSES_OPEN("ctorch.serialization\nos.system\n.", "torch.serialization.os.system");
    REFUSES_OPEN("cmymodule\nf.__globals__\n.", "hostile");
    REFUSES_OPEN("cmymodule\n__builtins__.eval\n.", "hostile");
    /* a name that only begins so is none */
    SHOWS_OPEN("cosprey\nBird\n.", "\"osprey.Bird\"");
}

/* of a class known by its name: how Python 3.11.0 to 3.11.4 spell a member of an enum */
static void getattr_is_a_name_and_nothing_else(void **state)
{
    SHOWS_OPEN("cbuiltins\ngetattr\np0\n(cm\nKind\nX\x03\0\0\0onetRp1\n0]h\x01"
               "ah\0(cm\nKind\nX\x03\0\0\0twotRa.",
               "[\"m.Kind.one\",\"m.Kind.two\"]");
    SHOWS_OPEN("c__builtin__\ngetattr\n(cm\nOuter\nX\x05\0\0\0InnertRK\x01\x85\x81.",
               "{\"args\":[1],\"class\":\"m.Outer.Inner\"}");
    SHOWS("cbuiltins\ngetattr\n(ctorch.distributed.checkpoint.planner\nWriteItemType\n"
          "X\x05\0\0\0SHARDtR.",
          "\"torch.distributed.checkpoint.planner.WriteItemType.SHARD\"");
    REFUSES("cbuiltins\ngetattr\n(ctorch.distributed.checkpoint.planner\nSavePlan\n"
            "X\x05\0\0\0itemstR.",
            "SavePlan.items is not known here");
    /* kept, or handed to what may call it */
    REFUSES_OPEN("cbuiltins\ngetattr\n\x85.",
                 "hostile: it wants to call builtins.getattr (byte 0)");
    REFUSES_OPEN("cfunctools\npartial\n(cbuiltins\ngetattr\ncm\nK\ntR.", "hostile");
    REFUSES_OPEN("cbuiltins\ngetattr\np0\n(cm\nK\nX\x01\0\0\0xtR0]h\0a.", "hostile");
    /* of an object, by another thing than a name, from a builtin, into what is hidden */
    REFUSES_OPEN("cbuiltins\ngetattr\n(cm\nK\n)RX\x01\0\0\0xtR.", "hostile");
    REFUSES_OPEN("cbuiltins\ngetattr\n(cm\nK\nK\x01tR.", "hostile");
    REFUSES_OPEN("cbuiltins\ngetattr\n(cm\nK\nX\x01\0\0\0xNtR.", "hostile");
    REFUSES_OPEN("cbuiltins\ngetattr\n(h\0X\x01\0\0\0xtR.", "memo entry");
    REFUSES_OPEN("cbuiltins\ngetattr\n(cm\nK\nX\x0b\0\0\0__globals__tR.", "m.K.__globals__");
    REFUSES_OPEN("cbuiltins\ngetattr\n(ctorch.serialization\nos\nX\x06\0\0\0systemtR.",
                 "os.system");
}

#define A_TENSOR "ctorch._utils\n_rebuild_tensor_v2\n(NK\x00))\x89NtR"

/* torch would change the tensor's numbers, which are read from its storage here */
static void tensors_have_no_items_and_no_state(void **state)
{
    REFUSES_OPEN(A_TENSOR "K\x00K\x05s.", "items for something that is not a dict");
    REFUSES_OPEN(A_TENSOR "(K\x00K\x05u.", "items for something that is not a dict");
    REFUSES_OPEN(A_TENSOR "K\x05"
                          "a.",
                 "items for something that is not a list");
    REFUSES_OPEN(A_TENSOR "(NK\x01))tb.", "state that would replace a tensor's");
    REFUSES_OPEN("ctorch._utils\n_rebuild_parameter\n(" A_TENSOR "\x89NtR(NK\x01))tb.",
                 "state that would replace");
    REFUSES_OPEN("cargparse\nNamespace\n)RK\x00K\x05s.", "items for something that is not a dict");
    SHOWS_OPEN("ccollections\nCounter\n)RK\x00K\x05s.",
               "{\"class\":\"collections.Counter\",\"contents\":{\"0\":5}}");
}

static void marks_are_the_floor_of_the_stack(void **state)
{
    REFUSES("K\x01K\x02(\x86.", "too few values on the stack");
    REFUSES_OPEN("cm\nC\n)(R.", "too few values on the stack");
    REFUSES("]((e", "items for something that is not a list");
    REFUSES("}((u", "items for something that is not a dict");
    REFUSES("K\x01(00.", "end with more or less than one value");
}

static void values_at_their_limits(void **state)
{
    /* seven bytes, which have no opcode of their own */
    SHOWS("\x8a\x07\0\0\0\0\0\0\xff.", "-281474976710656");
    SHOWS("\x8a\x07\0\0\0\0\0\0\x7f.", "35747322042253312");
    REFUSES("V\\U00110000\n.", "bad \\u escape");
    REFUSES("V\\ud800\n.", "bad \\u escape");
    /* there are so many bytes in all, but not behind it */
    REFUSES("K\x01\x30X\x06\0\0\0ab.", "string of 6 bytes");
    /* like one another in their first, middle and last letter */
    SHOWS("(X\x05\0\0\0abcdeX\x05\0\0\0aXcdel.", "[\"abcde\",\"aXcde\"]");
    REFUSES("ccollections\nOrderedDict\n(](K\x01K\x02K\x03tatR.", "not pairs");
    REFUSES("ccollections\nOrderedDict\n(](K\x01tatR.", "not pairs");
    /* numpy has no numbers of nine bytes */
    REFUSES("cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(X\2\0\0\0i9tRC\x09"
            "123456789tR.",
            "\"class\":\"numpy.core.multiarray.scalar\"");
    /* a tensor of a class of its own, in one, in one: only once */
    REFUSES_OPEN("ctorch._tensor\n_rebuild_from_type_v2\np0\n(h\0cm\nT\n(cm\nC\ncm\nT\n)NtNtR.",
                 "\"class\":\"torch._tensor._rebuild_from_type_v2\"");
}

/* a value of so many bytes: an opcode with its four bytes of length, then bytes of this kind */
static char *shown_large(char op, size_t n, char c)
{
    struct s2s_buf bytes = S2S_BUF_INIT;
    const uint32_t len = (uint32_t)n;
    s2s_buf_putc(&bytes, op);
    s2s_buf_add(&bytes, &len, 4);
    for (size_t i = 0; i < n; i++)
        s2s_buf_putc(&bytes, c);
    s2s_buf_putc(&bytes, '.');
    char *text = shown(bytes.data, bytes.len, CKPT_STRICT);
    s2s_buf_release(&bytes);
    return text;
}

/* shown() lets 1000 values, of which a list counts as four, and 1000 bytes of text be printed */
static void what_is_shown_has_an_end(void **state)
{
    char *text = shown_large('X', 1000, 'a');
    assert_int_equal(strlen(text), 1002);
    free(text);
    text = shown_large('X', 1001, 'a');
    assert_string_equal(text, "\"...\"");
    free(text);
    text = shown_large('\x8b', 64, '\xff');
    assert_string_equal(text, "\"-1\"");
    free(text);
    text = shown_large('\x8b', 65, '\xff');
    assert_string_equal(text, "\"(integer of 65 bytes)\"");
    free(text);
    struct s2s_buf bytes = S2S_BUF_INIT;
    s2s_buf_putc(&bytes, '(');
    for (int i = 0; i < 2000; i++)
        s2s_buf_putc(&bytes, 'N');
    s2s_buf_puts(&bytes, "l.");
    text = shown(bytes.data, bytes.len, CKPT_STRICT);
    assert_int_equal(strlen(text), 2 + 996 * strlen("null,") + 1004 * strlen("\"...\",") - 1);
    free(text);
    s2s_buf_release(&bytes);
}

/* the bytes are those of pickle.dumps of Python 3.11.2, with protocols 2 and 4 */
static void flags_of_several_names_are_names(void **state)
{
    SHOWS_OPEN("\x80\x02"
               "c_operator\nor_\nq\x00"
               "c__builtin__\ngetattr\nq\x01"
               "cre\nRegexFlag\nq\x02X\x09\0\0\0MULTILINEq\x03\x86q\x04Rq\x05h\x01h\x02X\x0a\0\0\0"
               "IGNORECASEq\x06\x86q\x07Rq\x08\x86q\x09Rq\x0a.",
               "\"re.RegexFlag.IGNORECASE|MULTILINE\"");
    SHOWS_OPEN("\x80\x02"
               "c_operator\nor_\nq\x00h\x00"
               "c__builtin__\ngetattr\nq\x01"
               "cm\nF\nq\x02X\x01\0\0\0Cq\x03\x86q\x04Rq\x05h\x01h\x02X\x01\0\0\0Bq\x06\x86q\x07Rq"
               "\x08\x86q\x09Rq\x0ah\x01h\x02X\x01\0\0\0Aq\x0b\x86q\x0cRq\x0d\x86q\x0eRq\x0f.",
               "\"m.F.A|B|C\"");
    SHOWS_OPEN("\x80\x04\x95\x4e\0\0\0\0\0\0\0\x8c\x09_operator\x94\x8c\x03or_\x94\x93\x94\x8c\x08"
               "builtins\x94\x8c\x07getattr\x94\x93\x94\x8c\x01m\x94\x8c\x01"
               "F\x94\x93\x94\x8c\x01"
               "B\x94\x86\x94R\x94h\x05h\x08\x8c\x01"
               "A\x94\x86\x94R\x94\x86\x94R\x94.",
               "\"m.F.A|B\"");
    /* bits without a name */
    SHOWS_OPEN("\x80\x02"
               "c_operator\nor_\nq\x00"
               "c__builtin__\ngetattr\nq\x01"
               "cm\nK\nq\x02X\x01\0\0\0Aq\x03\x86q\x04Rq\x05K\x0c\x86q\x06Rq\x07.",
               "\"m.K.A|12\"");
    /* not where classes are known or refused */
    REFUSES("c_operator\nor_\n(cm\nF.B\ncm\nF.A\ntR.", "hostile: it wants to call _operator.or_");
    REFUSES(
        "c_operator\nor_\n(ctorch.distributed.checkpoint.planner\nWriteItemType.SHARD\nK\x04tR.",
        "hostile");
    /* kept, handed on, or of what is no member of one class */
    REFUSES_OPEN("c_operator\nor_\n.", "hostile: it wants to call _operator.or_ (byte 0)");
    REFUSES_OPEN("cfunctools\nreduce\n(c_operator\nor_\n(cm\nF.A\ncm\nF.B\nttR.", "hostile");
    REFUSES_OPEN("c_operator\nor_\np0\n(cm\nF.B\ncm\nF.A\ntR0]h\0a.", "hostile");
    REFUSES_OPEN("c_operator\nor_\n(cm\nF.B\ncm\nG.A\ntR.", "hostile");
    REFUSES_OPEN("c_operator\nor_\n(cm\nF.B\ncn\nF.A\ntR.", "hostile");
    REFUSES_OPEN("c_operator\nor_\n(cm\nF\ncm\nG\ntR.", "hostile");
    REFUSES_OPEN("c_operator\nor_\n(cm\nF\nK\x01tR.", "hostile");
    REFUSES_OPEN("c_operator\nor_\n(cm\nF.B\ncm\nF.A\n)RtR.", "hostile");
    REFUSES_OPEN("c_operator\nor_\n(cm\nF.B\n)Rcm\nF.A\ntR.", "hostile");
    REFUSES_OPEN("c_operator\nor_\n(cm\nF.B\ncm\nF.A\ncm\nF.C\ntR.", "hostile");
    REFUSES_OPEN("c_operator\nor_\n(cm\nF.B\nX\x01\0\0\0AtR.", "hostile");
    REFUSES_OPEN("c_operator\nor_\n(cm\nF.B\nJ\xff\xff\xff\xfftR.", "hostile");
    REFUSES_OPEN("c_operator\nor_\n)R.", "hostile");
    REFUSES_OPEN("c_operator\nand_\n(cm\nF.B\ncm\nF.A\ntR.", "hostile");
    REFUSES_OPEN("coperator\nor_\n(cm\nF.B\ncm\nF.A\ntR.", "hostile");
}

static int take_none(void *ctx, struct ckpt_node *key, struct ckpt_node *value,
                     struct s2s_error *err)
{
    return 0;
}

static int take_texts(void *ctx, struct ckpt_node *key, struct ckpt_node *value,
                      struct s2s_error *err)
{
    size_t *n_taken = ctx;
    *n_taken += value->kind == CKPT_STR;
    return value->kind == CKPT_STR;
}

static int take_lists(void *ctx, struct ckpt_node *key, struct ckpt_node *value,
                      struct s2s_error *err)
{
    return key && value->kind == CKPT_LIST;
}

static void count_again(void *ctx)
{
    ++*(size_t *)ctx;
}

static void begin_again(void *ctx)
{
    *(size_t *)ctx = 0;
}

/* [{"...0"}, {"...1"}, ..], each set(["..."]) with the class from the memo; more than is collected
 * at once, several times */
static void a_large_pickle_is_as_a_small_one(void **state)
{
    enum { N = 100000, TEXT = 120 };
    struct s2s_buf bytes = S2S_BUF_INIT;
    struct s2s_error err = S2S_ERROR_INIT;
    struct ckpt_pickle pickle;
    size_t n_taken = 0;
    /* a class, and texts that are fetched at the end: in the memo and off the stack */
    static const char head[] =
        "]cbuiltins\nset\nq\0000X\3\0\0\0oneq\0010X\3\0\0\0twoq\0020X\3\0\0\0redq\0030";
    s2s_buf_add(&bytes, head, sizeof head - 1);
    for (int i = 0; i < N; i++) {
        s2s_buf_add(&bytes, "h\0(]X\x78\0\0\0", 9);
        s2s_buf_printf(&bytes, "%0*d", TEXT, i);
        s2s_buf_puts(&bytes, "atRa");
    }
    s2s_buf_puts(&bytes, "h\3ah\1ah\2a.");
    FILE *file = tmpfile();
    assert_int_equal(fwrite(bytes.data, 1, bytes.len, file), bytes.len);
    fflush(file);
    const struct ckpt_pickle_taker none = {
        .ctx = &n_taken, .item = take_none, .again = begin_again};
    assert_int_equal(
        ckpt_pickle_parse_file(&pickle, fileno(file), 0, bytes.len, CKPT_STRICT, &none, &err), 0);
    assert_int_equal(pickle.root->n, N + 3);
    assert_true(ckpt_str_is(pickle.root->items[N], "red"));
    assert_true(ckpt_str_is(pickle.root->items[N + 1], "one"));
    assert_true(ckpt_str_is(pickle.root->items[N + 2], "two"));
    for (int i = 0; i < N; i++) {
        const struct ckpt_node *set = pickle.root->items[i];
        char want[TEXT + 1];
        snprintf(want, sizeof want, "%0*d", TEXT, i);
        if (set->kind != CKPT_SET || set->n != 1 || !ckpt_str_is(set->items[0], want))
            fail_msg("item %d is of kind %d", i, set->kind);
    }
    ckpt_pickle_release(&pickle);
    /* the texts are taken before they come into a set */
    const struct ckpt_pickle_taker texts = {
        .ctx = &n_taken, .item = take_texts, .again = begin_again};
    assert_int_equal(
        ckpt_pickle_parse_file(&pickle, fileno(file), 0, bytes.len, CKPT_STRICT, &texts, &err), 0);
    assert_int_equal(n_taken, N + 3);
    assert_int_equal(pickle.root->n, N);
    assert_int_equal(pickle.root->items[N - 1]->n, 0);
    ckpt_pickle_release(&pickle);
    /* a byte less, and one more in front */
    assert_int_equal(
        ckpt_pickle_parse_file(&pickle, fileno(file), 0, bytes.len - 1, CKPT_STRICT, &none, &err),
        S2S_E_TRUNCATED);
    assert_int_equal(
        ckpt_pickle_parse_file(&pickle, fileno(file), 1, bytes.len - 1, CKPT_STRICT, &none, &err),
        S2S_E_FORMAT);
    fclose(file);
    s2s_buf_release(&bytes);
}

/* before, n times fill behind its length, after; what is shown begins with want */
static void shows_large(const char *before, size_t before_len, const char *fill, const char *after,
                        const char *want)
{
    const uint32_t n = 300000, len = n * (uint32_t)strlen(fill);
    struct s2s_buf bytes = S2S_BUF_INIT;
    s2s_buf_add(&bytes, before, before_len);
    s2s_buf_add(&bytes, &len, sizeof len);
    for (uint32_t i = 0; i < n; i++)
        s2s_buf_puts(&bytes, fill);
    s2s_buf_puts(&bytes, after);
    char *text = shown(bytes.data, bytes.len, CKPT_OPEN);
    if (!s2s_starts_with(text, want))
        fail_msg("expected \"%s\" in: %.200s", want, text);
    free(text);
    s2s_buf_release(&bytes);
}

#define SHOWS_LARGE(before, fill, after, want) \
    shows_large(before, sizeof(before) - 1, fill, after, want)

/* of a file large byte objects are not read; what is behind them is */
static void large_texts_and_bytes(void **state)
{
#define LATIN "U\6latin1\x86R"
    SHOWS_LARGE("]B", "x", "aK\7a.", "[\"(300000 bytes)\",7]");
    SHOWS_LARGE("]\x8b", "\1", "aK\7a.", "[\"(integer of 300000 bytes)\",7]");
    SHOWS_LARGE("]c_codecs\nencode\nX", "\xc3\xa9", "q\1" LATIN "q\2aK\7ah\2a.",
                "[\"(300000 bytes)\",7,\"(300000 bytes)\"]");
    SHOWS_LARGE("]c__builtin__\nbytearray\nX", "x\xc2\x80", LATIN "aK\7a.",
                "[\"(600000 bytes)\",7]");
    SHOWS_LARGE("]c_codecs\nencode\nX", "\xc4\x80", LATIN "a.", "FORMAT: pickle: bytes above 255");
    /* as a text it is too long to be shown here, and whole */
    SHOWS_LARGE("]X", "x", "q\1aK\7ac_codecs\nencode\nh\1" LATIN "a.",
                "[\"...\",7,\"(300000 bytes)\"]");
    SHOWS_LARGE("B", "x", "", "TRUNCATED: pickle: no STOP within 300005 bytes");
#undef LATIN
}

/* _rebuild_tensor_v2 of storage "7", float32, 6 elements; what it gives is memo 9 */
#define TENSOR(offset, size, stride) \
    "ctorch._utils\n_rebuild_tensor_v2\n((" \
    "U\7storagectorch\nFloatStorage\nU\0017U\3cpuK\6tQ" offset size stride "\x89}tRq\x09"
#define SHOWN(offset, size, stride) \
    "{\"args\":[\"(storage)\"," offset "," size "," stride ",false,{}]," \
    "\"class\":\"torch._utils._rebuild_tensor_v2\"}"

/* plain tensors become nodes of their own, which nobody sees */
static void tensors_are_as_they_were(void **state)
{
    SHOWS_OPEN("}U\1a" TENSOR("K\0", "(K\2K\3t", "(K\3K\1t") "s.",
               "{\"a\":" SHOWN("0", "[2,3]", "[3,1]") "}");
    SHOWS_OPEN("]" TENSOR("K\1", "(K\2K\2t", "(K\1K\2t") "ah\11ah\11\205a.",
               "[" SHOWN("1", "[2,2]", "[1,2]") "," SHOWN("1", "[2,2]", "[1,2]") ",[" SHOWN(
                   "1", "[2,2]", "[1,2]") "]]");
    /* empty, no axes, past its storage, with a hook */
    SHOWS_OPEN("(U\1a" TENSOR("K\2", "(K\0t", "(K\5t") "d}U\1b" TENSOR("K\5", ")", ")") "s\x86.",
               "[{\"a\":" SHOWN("2", "[0]", "[5]") "},{\"b\":" SHOWN("5", "[]", "[]") "}]");
    SHOWS_OPEN("]" TENSOR("K\2", "(K\5t", "(K\1t") "a.", "[" SHOWN("2", "[5]", "[1]") "]");
    REFUSES_OPEN("]" TENSOR("K\0", "(K\2t", "(K\1t") "ah\11}ba.", "state that would replace");
    REFUSES_OPEN("]" TENSOR("K\0", "(K\2t", "(K\1t") "ah\11K\1K\1sa.",
                 "items for something that is not a dict");
}

/* parses what is in a file and says how often it began again; taker: as take_texts, or NULL */
static char *shown_of_file(const struct s2s_buf *bytes,
                           int (*item)(void *, struct ckpt_node *, struct ckpt_node *,
                                       struct s2s_error *),
                           size_t *n_again)
{
    struct ckpt_pickle pickle;
    struct s2s_error err = S2S_ERROR_INIT;
    const struct ckpt_pickle_taker taker = {.ctx = n_again, .item = item, .again = count_again};
    FILE *file = tmpfile();
    assert_int_equal(fwrite(bytes->data, 1, bytes->len, file), bytes->len);
    fflush(file);
    *n_again = 0;
    int rc = ckpt_pickle_parse_file(&pickle, fileno(file), 0, bytes->len, CKPT_OPEN, &taker, &err);
    most_shown = 100000;
    char *text = shown_tree(&pickle, rc, &err);
    most_shown = 1000;
    fclose(file);
    return text;
}

/* {"in": {"w00": tensor, ..}}, filled by a few at a time, of which the later ones are those of the
 * memo; `before` and `between` are opcodes before the dict and between the fillings */
static void tensors_outlive_what_they_were_made_of(void **state)
{
    enum { N = 60, AT_ONCE = 5 };
    struct s2s_buf bytes = S2S_BUF_INIT, want = S2S_BUF_INIT;
    size_t n_again;
    s2s_buf_puts(&bytes, "}(U\2in}(");
    s2s_buf_puts(&want, "{\"in\":{");
    for (int i = 0; i < N; i++) {
        s2s_buf_printf(&bytes, "U\3w%02d", i);
        if (i < N / 2)
            s2s_buf_add(&bytes, TENSOR("K\1", "(K\2K\2t", "(K\2K\1t"),
                        sizeof TENSOR("K\1", "(K\2K\2t", "(K\2K\1t") - 1);
        else
            s2s_buf_puts(&bytes, "h\11");
        s2s_buf_printf(&want, "%s\"w%02d\":%s", i ? "," : "", i, SHOWN("1", "[2,2]", "[2,1]"));
        if (i % AT_ONCE == AT_ONCE - 1)
            s2s_buf_puts(&bytes, i + 1 < N ? "u(" : "u");
    }
    s2s_buf_puts(&bytes, "u.");
    s2s_buf_puts(&want, "}}");
    char *text = shown_of_file(&bytes, NULL, &n_again);
    assert_string_equal(text, want.data);
    assert_int_equal(n_again, 0);
    free(text);
    s2s_buf_release(&bytes);
    s2s_buf_release(&want);
}

/* lists are taken, and so dropped, with what is in them */
static void values_are_dropped_unless_something_has_them(void **state)
{
    static const struct {
        const char *bytes, *want;
        size_t n_again;
    } cases[] = {
        /* a list that is taken, then one that is not */
        {"}(U\1a](K\1K\2eU\1bK\3u.", "{\"b\":3}", 0},
        /* it is fetched: in another dict, as a key's value that is not taken */
        {"](}(U\1a](K\1eq\1U\1bK\3u}(U\1ch\1\205ue.", "[{\"b\":3},{\"c\":[[1]]}]", 1},
        /* fetched, and dropped once more */
        {"](}(U\1a](K\1eq\1U\1bK\3u}(U\1ch\1ue.", "[{\"b\":3},{}]", 1},
        /* an older list gets a list that was made in a dict whose other values are dropped */
        {"]q\1(}(U\1ah\1](K\7e\205aN0U\1bK\5ue.", "[[[7]],{\"b\":5}]", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct s2s_buf bytes = S2S_BUF_INIT;
        size_t n_again;
        s2s_buf_puts(&bytes, cases[i].bytes);
        char *text = shown_of_file(&bytes, take_lists, &n_again);
        if (!s2s_starts_with(text, cases[i].want) || n_again != cases[i].n_again)
            fail_msg("case %zu: %s, %zu times again", i, text, n_again);
        free(text);
        s2s_buf_release(&bytes);
    }
}

/* a memo whose entries are not put in the order of their numbers */
static void a_memo_may_be_numbered_in_any_way(void **state)
{
    static const char bytes[] = "]X\1\0\0\0aq\2aX\1\0\0\0bq\1ah\2ah\1a.";
    size_t n_taken = 0;
    const struct ckpt_pickle_taker none = {
        .ctx = &n_taken, .item = take_none, .again = begin_again};
    struct ckpt_pickle pickle;
    struct s2s_error err = S2S_ERROR_INIT;
    FILE *file = tmpfile();
    assert_int_equal(fwrite(bytes, 1, sizeof bytes - 1, file), sizeof bytes - 1);
    fflush(file);
    assert_int_equal(ckpt_pickle_parse_file(&pickle, fileno(file), 0, sizeof bytes - 1, CKPT_STRICT,
                                            &none, &err),
                     0);
    assert_int_equal(pickle.root->n, 4);
    for (uint32_t i = 0; i < 4; i++)
        assert_true(ckpt_str_is(pickle.root->items[i], i % 2 ? "b" : "a"));
    ckpt_pickle_release(&pickle);
    fclose(file);
}

static void damaged_pickles_name_opcode_and_byte(void **state)
{
    REFUSES("", "no STOP within 0 bytes");
    REFUSES("K\x01", "no STOP");
    REFUSES("X\xff\xff\xff\x7f"
            "abc.",
            "string of 2147483647 bytes at byte 0, 4 are left");
    SHOWS("\x80\x05N.", "null");
    REFUSES("\x80\x06N.", "protocol above 5");
    REFUSES("tN.", "no mark");
    REFUSES("R.", "too few values");
    REFUSES("K\x01K\x02.", "end with more or less than one value");
    REFUSES("]K\x01K\x02s.", "items for something that is not a dict");
    REFUSES("}K\x01"
            "a.",
            "items for something that is not a list");
    REFUSES("h\x05.", "memo entry that was never set");
    REFUSES("Nq\0h\x05.", "memo entry that was never set");
    REFUSES("]r\xff\xff\xff\xff.", "memo index past the number of opcodes");
    REFUSES("(i__main__\nX\n.", "opcode 0x69 at byte 1");
    REFUSES("\x82\x01.", "opcode that no checkpoint needs");
    REFUSES("K\x01K\x01\x85R.", "call of something that is not a class");
    REFUSES("(K\x01"
            "d.",
            "odd number");
    REFUSES("(K\x01K\x02K\x03"
            "00000.",
            "too few values");
}

static void wrong_values_name_what_is_wrong(void **state)
{
    REFUSES("}K\x01K\x02u.", "no mark");
    REFUSES("}(K\x01u.", "odd number");
    REFUSES("1.", "no mark");
    REFUSES("s.", "too few values");
    REFUSES("q\0.", "too few values");
    REFUSES("2.", "too few values");
    REFUSES("Q.", "too few values");
    REFUSES("b.", "too few values");
    REFUSES("\x93.", "too few values");
    REFUSES("(.", "end with more or less than one value");
    REFUSES("K\x01(.", "end with more or less than one value");
    REFUSES("K\x07p0x\n.", "bad memo index");
    REFUSES("\x80\x04\x95\xff\0\0\0\0\0\0\0N.", "frame longer than the pickle");
    REFUSES("K\x01K\x02\x93.", "class whose name is not a string");
    REFUSES("c_codecs\nencode\nK\x01\x85R.", "encode of something that is not a string");
    REFUSES("c_codecs\nencode\nX\x02\0\0\0\xc4\x80\x85R.", "bytes above 255");
    REFUSES("c__builtin__\nset\nK\x01\x85R.", "container made of something else");
    REFUSES("ccollections\nOrderedDict\n]K\x01"
            "a\x85R.",
            "dict made of items that are not pairs");
    REFUSES("ctorch\nSize\n]R.", "call whose arguments are not a tuple");
    REFUSES("K\x01Nb.", "state for something that is not an object");
    REFUSES("cargparse\nNamespace\n)\x81}b}b.", "state of an object set twice");
    REFUSES("Fx\n.", "not a number");
    REFUSES("Ix\n.", "not an integer");
    REFUSES("L-L\n.", "not an integer");
    REFUSES("L--1L\n.", "not an integer");
    REFUSES("L1111111111222222222233333333334444444444555555555566666666667777L\n.",
            "number of more than 63 digits");
    REFUSES("V\\ud800\n.", "bad \\u escape");
    REFUSES("V\\u12\n.", "bad \\u escape");
    REFUSES("Sabc\n.", "string without quotes");
    REFUSES("S'a\\q'\n.", "bad escape");
    REFUSES("S'a\\'\n.", "bad escape");
    REFUSES("J\x01.", "ends inside opcode 0x4a at byte 0 of 3");
    REFUSES("G\0.", "ends inside opcode 0x47");
    REFUSES("I12", "ends inside opcode 0x49");
    REFUSES("\x8a\x02\x01", "ends inside opcode 0x8a");
}

static void nesting_does_not_recurse(void **state)
{
    enum { DEPTH = 200000 };
    char *bytes = s2s_xmalloc(2 * DEPTH + 1);
    memset(bytes, '(', DEPTH);
    memset(bytes + DEPTH, 't', DEPTH);
    bytes[2 * DEPTH] = '.';
    char *text = shown(bytes, 2 * DEPTH + 1, CKPT_STRICT);
    assert_non_null(strstr(text, "..."));
    free(text);
    free(bytes);
    /* a list that holds itself */
    text = shown("]q\0h\0a.", 7, CKPT_STRICT);
    assert_non_null(strstr(text, "..."));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_values_of_all_protocols),
        cmocka_unit_test(containers_and_memo),
        cmocka_unit_test(known_calls_become_data),
        cmocka_unit_test(rarer_opcodes_give_what_pickle_gives),
        cmocka_unit_test(numbers_of_numpy_are_numbers),
        cmocka_unit_test(unknown_classes_are_refused_or_opaque),
        cmocka_unit_test(hostile_classes_are_always_refused),
        cmocka_unit_test(getattr_is_a_name_and_nothing_else),
        cmocka_unit_test(tensors_have_no_items_and_no_state),
        cmocka_unit_test(flags_of_several_names_are_names),
        cmocka_unit_test(marks_are_the_floor_of_the_stack),
        cmocka_unit_test(values_at_their_limits),
        cmocka_unit_test(what_is_shown_has_an_end),
        cmocka_unit_test(a_large_pickle_is_as_a_small_one),
        cmocka_unit_test(large_texts_and_bytes),
        cmocka_unit_test(tensors_are_as_they_were),
        cmocka_unit_test(tensors_outlive_what_they_were_made_of),
        cmocka_unit_test(values_are_dropped_unless_something_has_them),
        cmocka_unit_test(a_memo_may_be_numbered_in_any_way),
        cmocka_unit_test(damaged_pickles_name_opcode_and_byte),
        cmocka_unit_test(wrong_values_name_what_is_wrong),
        cmocka_unit_test(nesting_does_not_recurse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
