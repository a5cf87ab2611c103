package main

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Only mappings of the program that cannot be written, and have no pages of their own, are named.
func TestCleanMappings(t *testing.T) {
	const smaps = "00400000-01710000 r-xp 00000000 fe:00 107    /opt/my tools/gatehouse\nRss:  4 kB\n" +
		"Anonymous:  0 kB\n" +
		"01710000-02b10000 r--p 01310000 fe:00 107    /opt/my tools/gatehouse\nRss:  4 kB\nAnonymous:  4 kB\n" +
		"02b10000-02d8a000 rw-p 02710000 fe:00 107    /opt/my tools/gatehouse\nRss:  4 kB\nAnonymous:  0 kB\n" +
		"7f0000000000-7f0000001000 r--p 00000000 00:00 0\nAnonymous:  0 kB\n" +
		"7f0000001000-7f0000002000 r-xp 00000000 fe:00 9    /lib/libc.so\nAnonymous:  0 kB\n"
	got := cleanMappings([]byte(smaps), "/opt/my tools/gatehouse")
	if want := []mapping{{0x400000, 0x1710000}}; !slices.Equal(got, want) {
		t.Errorf("got %x, want %x", got, want)
	}
}

// The pages of the program leave this process, which goes on.
func TestThePagesOfTheProgramAreUnmapped(t *testing.T) {
	before := residentOfFiles(t)
	unmapProgram()
	if after := residentOfFiles(t); after >= before {
		t.Errorf("%d kB of files were resident, and then %d kB", before, after)
	}
}

func residentOfFiles(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "RssFile:")
	line, _, _ := strings.Cut(rest, " kB")
	n, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	return n
}
