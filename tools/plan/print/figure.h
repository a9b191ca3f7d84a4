/* Figures as the planner prints them: three digits, and decimal units as vendors of hardware use them. */
#pragma once

struct figure {
    char chars[24];
};

struct figure figure_bytes(double bytes);     /* "12.3 GB" */
struct figure figure_count(double count);     /* "12.3 G" */
struct figure figure_seconds(double seconds); /* "12.3 ms", "4.5 s", "3.2 h" */
