package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"time"
)

// remember keeps some MiB of random bytes in memory. When a file "ask" appears, it writes the digest of the bytes to
// a file "answer"; if the file says "change", it first changes some of them and sets others to zero.
func remember(_ func(name, got string), args []string) {
	mib, err := strconv.Atoi(args[0])
	if err != nil {
		os.Exit(3)
	}
	all := make([]uint64, mib<<20/8)
	change := func(these []uint64) {
		for i := range these {
			these[i] = rand.Uint64()
		}
	}
	change(all)
	for ; ; time.Sleep(5 * time.Millisecond) {
		asked, err := os.ReadFile("ask")
		if err != nil {
			continue
		}
		if string(asked) == "change\n" {
			third := len(all) / 3
			change(all[:third])
			clear(all[third : 2*third])
		}
		digest := uint64(0)
		for _, n := range all {
			digest = (digest ^ n) * 0x9e3779b97f4a7c15
			digest ^= digest >> 29
		}
		os.Remove("ask")
		os.WriteFile("answer.new", fmt.Appendf(nil, "%016x\n", digest), 0o600)
		os.Rename("answer.new", "answer")
	}
}
