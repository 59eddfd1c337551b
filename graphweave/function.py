"""Built-in message and reduce functions under DGL's names: `copy_u`, `u_mul_e`, `sum`, ... Each has its formula."""

from __future__ import annotations

from graphweave.udf.builtin import BINARY, REDUCE, copy_e, copy_u

u_add_e = BINARY["u_add_e"]
u_add_v = BINARY["u_add_v"]
e_add_u = BINARY["e_add_u"]
e_add_v = BINARY["e_add_v"]
v_add_u = BINARY["v_add_u"]
v_add_e = BINARY["v_add_e"]
u_sub_e = BINARY["u_sub_e"]
u_sub_v = BINARY["u_sub_v"]
e_sub_u = BINARY["e_sub_u"]
e_sub_v = BINARY["e_sub_v"]
v_sub_u = BINARY["v_sub_u"]
v_sub_e = BINARY["v_sub_e"]
u_mul_e = BINARY["u_mul_e"]
u_mul_v = BINARY["u_mul_v"]
e_mul_u = BINARY["e_mul_u"]
e_mul_v = BINARY["e_mul_v"]
v_mul_u = BINARY["v_mul_u"]
v_mul_e = BINARY["v_mul_e"]
u_div_e = BINARY["u_div_e"]
u_div_v = BINARY["u_div_v"]
e_div_u = BINARY["e_div_u"]
e_div_v = BINARY["e_div_v"]
v_div_u = BINARY["v_div_u"]
v_div_e = BINARY["v_div_e"]
u_dot_e = BINARY["u_dot_e"]
u_dot_v = BINARY["u_dot_v"]
e_dot_u = BINARY["e_dot_u"]
e_dot_v = BINARY["e_dot_v"]
v_dot_u = BINARY["v_dot_u"]
v_dot_e = BINARY["v_dot_e"]

sum = REDUCE["sum"]
mean = REDUCE["mean"]
max = REDUCE["max"]
min = REDUCE["min"]

__all__ = [
    "copy_e",
    "copy_u",
    "e_add_u",
    "e_add_v",
    "e_div_u",
    "e_div_v",
    "e_dot_u",
    "e_dot_v",
    "e_mul_u",
    "e_mul_v",
    "e_sub_u",
    "e_sub_v",
    "max",
    "mean",
    "min",
    "sum",
    "u_add_e",
    "u_add_v",
    "u_div_e",
    "u_div_v",
    "u_dot_e",
    "u_dot_v",
    "u_mul_e",
    "u_mul_v",
    "u_sub_e",
    "u_sub_v",
    "v_add_e",
    "v_add_u",
    "v_div_e",
    "v_div_u",
    "v_dot_e",
    "v_dot_u",
    "v_mul_e",
    "v_mul_u",
    "v_sub_e",
    "v_sub_u",
]
