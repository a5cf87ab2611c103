package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"gatehouse/bench/load"
)

// product is the command that people install.
const product = "the gatehouse command"

// starts measures the time from starting a process to its first answer, and
// how large the binaries are.
func (b *bench) starts() error {
	for rep := range max(b.reps, 5) {
		for i := range b.subjects {
			if err := b.startOne(b.subjects[(i+rep)%len(b.subjects)]); err != nil {
				return err
			}
		}
		if err := b.startProduct(); err != nil {
			return err
		}
	}
	for _, name := range b.subjects {
		if err := b.weigh("binary, stripped", b.lab.binary(name), name); err != nil {
			return err
		}
	}
	return b.weigh("binary of "+product+", stripped", b.lab.product(), ours)
}

func (b *bench) weigh(figure, file, name string) error {
	info, err := os.Stat(file)
	if err == nil {
		b.sheet.add(figure, "MB", name, float64(info.Size())/1e6)
	}
	return err
}

func (b *bench) startOne(name string) error {
	begin := time.Now()
	p, err := b.lab.start(name)
	if err != nil {
		return err
	}
	defer p.stop()
	if err := firstAnswer(p.addr); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	b.sheet.add("start to first answer", "ms", name, micros(time.Since(begin))/1e3)
	return nil
}

// firstAnswer is the handshake that every client begins with.
func firstAnswer(addr string) error {
	c, err := load.Dial(addr)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Open()
	return err
}

func (l *lab) product() string { return filepath.Join(l.dir, "product") }

// startProduct starts the command as a person would.
func (b *bench) startProduct() error {
	home := filepath.Join(b.lab.dir, "home")
	if err := os.MkdirAll(home, 0o700); err != nil {
		return err
	}
	begin := time.Now()
	p, err := b.lab.startServing(append(os.Environ(), "HOME="+home), "-d", home, "--auth-token", load.Token)
	if err != nil {
		return err
	}
	defer p.stop()
	if err := firstAnswer(p.addr); err != nil {
		return fmt.Errorf("%s: %w", product, err)
	}
	b.sheet.add("start to first answer, "+product, "ms", ours, micros(time.Since(begin))/1e3)
	return nil
}
