#!/usr/bin/env bash
# verify: the summary, fixed choices, and that a seed is reproduced.
. "$(dirname "$0")/common.bash"
expect 0 verify --cases 200; says 'cases per pair of layout kinds'; says '^0 of them failed'
expect 0 verify --cases 100 --seed 12345 --path packed --ranks 3 --threads 2; says '^0 of them failed'
expect 0 verify --cases 100 --seed 0x10 --path direct --ranks 64; says '^0 of them failed'
expect 0 verify --cases 50 --ranks 1; says '^0 of them failed'
expect 0 verify --cases 100 --dst-dtype bf16; says '^100|^102'; says '^0 of them failed'
expect 0 verify --cases 60 --ranks 6 --topology 3; says '^0 of them failed'
says '^[56][0-9] with domains: .* [1-9][0-9]* bytes came from other domains, [1-9][0-9]* from their own$'
refuse 2 '--topology 3: --ranks is needed, too' verify --cases 5 --topology 3
refuse 2 '--topology nvl:0: the ranks of a domain are needed' verify --cases 5 --ranks 6 --topology nvl:0
expect 0 verify --cases 30 --dst-dtype f8_e4m3/8x16; says '^0 of them failed'
expect 0 verify --cases 30 --dtype f8_e4m3/1x32:e8m0 --dst-dtype bf16; says '^0 of them failed'
refuse 2 '--dtype bf16: --dst-dtype is needed, too' verify --cases 1 --dtype bf16
refuse 3 'to f32, f16 and bf16, not to f64' verify --cases 1 --dtype f8_e4m3/8x8 --dst-dtype f64
refuse 3 'of f32, f16 and bf16, not of f64' verify --cases 1 --dtype f64 --dst-dtype f8_e4m3/8x8
refuse 3 '--dst-dtype c64: there are no casts to it' verify --cases 5 --dst-dtype c64
expect 0 verify --cases 1 --seed 77
grep -v ' s$' out >first
expect 0 verify --cases 1 --seed 77
grep -v ' s$' out | cmp -s - first || fault 'one seed gave two cases'
expect 0 verify --cases 1000000000 --seconds 1; says '^[1-9][0-9]{0,7} cases, '; says '^0 of them failed'
expect 2 verify --seconds 0
finish
