/*
 * The list of all kernels, which everything that has a part for each is made from: the members of
 * struct s2s_kernels, the prototypes of a backend, tables that wrap another one.
 *
 * X(name, suffix, kind, mats): the member `name` takes a struct s2s_k_<suffix>; kind is PLAIN, or
 * WORKSPACE where there is a member <name>_workspace; mats is MAT(field) for each matrix of the
 * arguments, in a row and without commas. To use it define MAT, then X; X may paste kind to a name
 * of its own.
 */
#ifndef S2S_KERNELS_LIST_H
#define S2S_KERNELS_LIST_H

/* clang-format off */
#define S2S_KERNELS(X) \
    X(gemm, gemm, PLAIN, MAT(a) MAT(b) MAT(c) MAT(bias)) \
    X(gemm_grouped, gemm_grouped, PLAIN, MAT(a) MAT(b) MAT(c)) \
    X(copy, copy, PLAIN, MAT(src) MAT(dst)) \
    X(fill, fill, PLAIN, MAT(dst)) \
    X(axpby, axpby, PLAIN, MAT(x) MAT(z) MAT(y)) \
    X(colsum, colsum, WORKSPACE, MAT(x)) \
    X(reduce, reduce, WORKSPACE, MAT(x)) \
    X(dropout, dropout, PLAIN, MAT(x) MAT(y)) \
    X(transpose, transpose, PLAIN, MAT(x) MAT(y)) \
    X(glu, glu, PLAIN, MAT(gate) MAT(up) MAT(y)) \
    X(glu_backward, glu_backward, PLAIN, MAT(gate) MAT(up) MAT(dy) MAT(dgate) MAT(dup)) \
    X(embedding, embedding, PLAIN, MAT(table) MAT(y)) \
    X(embedding_backward, embedding_backward, PLAIN, MAT(dtable) MAT(dy)) \
    X(gather_rows, rows, PLAIN, MAT(dst) MAT(src)) \
    X(scatter_rows, rows, PLAIN, MAT(dst) MAT(src)) \
    X(rows_sum, rows_sum, PLAIN, MAT(dst) MAT(src)) \
    X(rows_sum_backward, rows_sum_backward, PLAIN, MAT(src) MAT(ddst) MAT(dsrc)) \
    X(rows_max, rows_max, PLAIN, MAT(dst) MAT(src)) \
    X(rows_max_backward, rows_max_backward, PLAIN, MAT(forward.src) MAT(ddst) MAT(dsrc)) \
    X(route, route, PLAIN, MAT(logits)) \
    X(route_backward, route_backward, PLAIN, MAT(forward.logits) MAT(dlogits)) \
    X(expert_order, expert_order, WORKSPACE, ) \
    X(router_load, router_load, WORKSPACE, MAT(logits)) \
    X(router_balance, router_balance, PLAIN, ) \
    X(router_balance_backward, router_balance_backward, PLAIN, \
      MAT(forward.logits) MAT(dlogits)) \
    X(expert_counts, expert_counts, PLAIN, ) \
    X(router_bias, router_bias, PLAIN, ) \
    X(rmsnorm, rmsnorm, PLAIN, MAT(x) MAT(residual) MAT(sum) MAT(y)) \
    X(rmsnorm_backward, rmsnorm_backward, WORKSPACE, \
      MAT(h) MAT(dy) MAT(dsum) MAT(dx) MAT(dresidual)) \
    X(layernorm, layernorm, PLAIN, MAT(x) MAT(residual) MAT(sum) MAT(y)) \
    X(layernorm_backward, layernorm_backward, WORKSPACE, \
      MAT(h) MAT(dy) MAT(dsum) MAT(dx) MAT(dresidual)) \
    X(column_stats, column_stats, WORKSPACE, MAT(x)) \
    X(batchnorm, batchnorm, PLAIN, MAT(x) MAT(y)) \
    X(batchnorm_backward, batchnorm_backward, WORKSPACE, \
      MAT(forward.x) MAT(dy) MAT(dx)) \
    X(rope_table, rope_table, PLAIN, ) \
    X(rope, rope, PLAIN, MAT(x) MAT(y)) \
    X(attention, attention, WORKSPACE, MAT(q) MAT(k) MAT(v) MAT(o)) \
    X(attention_backward, attention_backward, WORKSPACE, \
      MAT(forward.q) MAT(forward.k) MAT(forward.v) MAT(forward.o) \
      MAT(d_o) MAT(dq) MAT(dk) MAT(dv)) \
    X(attention_merge, attention_merge, PLAIN, MAT(o) MAT(part)) \
    X(relpos_table, relpos_table, PLAIN, ) \
    X(relattention, relattention, WORKSPACE, MAT(q) MAT(k) MAT(value) MAT(o) MAT(p)) \
    X(relattention_backward, relattention_backward, WORKSPACE, \
      MAT(forward.q) MAT(forward.k) MAT(forward.value) MAT(forward.p) \
      MAT(forward.o) MAT(d_o) MAT(dq) MAT(dk) MAT(dvalue) MAT(dp)) \
    X(conv2d, conv2d, WORKSPACE, MAT(x) MAT(y)) \
    X(conv2d_backward, conv2d_backward, WORKSPACE, \
      MAT(forward.x) MAT(forward.y) MAT(dy) MAT(dx)) \
    X(dwconv, dwconv, WORKSPACE, MAT(x) MAT(y)) \
    X(dwconv_backward, dwconv_backward, WORKSPACE, MAT(forward.x) MAT(dy) MAT(dx)) \
    X(conv1d, conv1d, WORKSPACE, MAT(x) MAT(y) MAT(initial) MAT(final)) \
    X(conv1d_backward, conv1d_backward, WORKSPACE, \
      MAT(forward.x) MAT(forward.initial) MAT(dy) MAT(dfinal) MAT(dx) MAT(dinitial)) \
    X(ssd, ssd, WORKSPACE, MAT(x) MAT(y) MAT(dt) MAT(b) MAT(c)) \
    X(ssd_backward, ssd_backward, WORKSPACE, \
      MAT(forward.x) MAT(forward.dt) MAT(forward.b) MAT(forward.c) \
      MAT(dy) MAT(dx) MAT(ddt) MAT(db) MAT(dc)) \
    X(gatednorm, gatednorm, PLAIN, MAT(x) MAT(z) MAT(y)) \
    X(gatednorm_backward, gatednorm_backward, WORKSPACE, \
      MAT(x) MAT(z) MAT(dy) MAT(dx) MAT(dz)) \
    X(xent_stats, xent_stats, PLAIN, MAT(logits)) \
    X(xent_finish, xent_finish, PLAIN, ) \
    X(xent_gradient, xent_gradient, PLAIN, MAT(logits) MAT(dlogits)) \
    X(sqdist, sqdist, PLAIN, MAT(x) MAT(target) MAT(dx)) \
    X(adamw, adamw, PLAIN, MAT(working)) \
    X(clip_factor, clip_factor, PLAIN, )
/* clang-format on */

#endif
