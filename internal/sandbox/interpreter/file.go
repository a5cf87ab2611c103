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

// RunOnce runs code as a program of its own, by an interpreter that is started
// for it: the way of those that wait, where none is free.
func RunOnce(ctx context.Context, box sandbox.Sandbox, l Language, c Code) (Result, error) {
	switch l {
	case Python:
		if f, err := StartForker(ctx, box); err == nil {
			defer f.Close()
			return f.Run(ctx, c)
		}
		// One that is too old to fork for code can read it from a file.
	case Node:
		w, err := await(ctx, box)
		if err != nil {
			return Result{}, err
		}
		return w.run(ctx, c, box)
	}
	return RunFile(ctx, box, l, c)
}

// RunFile runs code as a program of its own: it is written to a file, and the
// language's interpreter is started with that.
func RunFile(ctx context.Context, box sandbox.Sandbox, l Language, c Code) (Result, error) {
	files, ok := box.(sandbox.Files)
	if !ok {
		return Result{}, errors.New("running code needs a driver that offers files")
	}
	argv, suffix := l.program()
	name := "/tmp/.code-" + rand.Text() + suffix
	if _, err := files.WriteFile(ctx, name, strings.NewReader(c.Source), sandbox.Writing{Mode: 0o600}); err != nil {
		return Result{}, err
	}
	defer func() {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		files.Remove(clean, name, false) // the code may have done so
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
