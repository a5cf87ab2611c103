package interpreter

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"strings"
	"time"

	"gatehouse/internal/sandbox"
)

func input(c Code) io.Reader {
	if len(c.Stdin) == 0 {
		return nil
	}
	return bytes.NewReader(c.Stdin)
}

// RunOnce runs code in an interpreter started for it. It is used if no waiting interpreter is free.
func RunOnce(ctx context.Context, box sandbox.Sandbox, l Language, c Code) (Result, error) {
	switch l {
	case Python:
		if f, err := StartForker(ctx, box); err == nil {
			defer f.Close()
			return f.Run(ctx, c)
		}
		// A Python that is too old to fork for code can still read it from a file.
	case Node:
		w, err := awaitNode(ctx, box)
		if err != nil {
			return Result{}, err
		}
		return w.runCode(ctx, c, box)
	}
	return RunFile(ctx, box, l, c)
}

// RunFile writes code to a file and runs it with the language's interpreter.
func RunFile(ctx context.Context, box sandbox.Sandbox, l Language, c Code) (Result, error) {
	files, ok := box.(sandbox.Files)
	if !ok {
		return Result{}, errors.New("running code requires a driver that supports files")
	}
	argv, suffix := l.program()
	name := "/tmp/.code-" + rand.Text() + suffix
	if _, err := files.WriteFile(ctx, name, strings.NewReader(c.Source),
		sandbox.WriteOptions{Mode: 0o600}); err != nil {
		return Result{}, err
	}
	defer func() {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		files.Remove(clean, name, false) // the code may have removed it
	}()
	p, err := box.Exec(ctx, sandbox.Command{
		Argv: append(argv, name), Dir: c.Dir, Env: c.Env, Stdin: input(c),
		Stdout: c.Stdout, Stderr: c.Stderr, Timeout: c.Timeout, OutputBytes: c.OutputBytes,
	})
	if err != nil {
		return Result{}, err
	}
	r, err := p.Wait()
	return Result{Result: r}, err
}
