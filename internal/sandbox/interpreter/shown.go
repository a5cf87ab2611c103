package interpreter

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io/fs"
	"time"

	"gatehouse/internal/sandbox"
)

// shownIn is a file in which a Node writes down what its code shows and what
// went wrong, a line of JSON for each. It is the code's, and may hold anything.
type shownIn struct {
	files sandbox.Files // nil where there are none
	name  string
}

func shownBy(box sandbox.Sandbox) shownIn {
	if f, ok := box.(sandbox.Files); ok {
		return shownIn{f, "/tmp/.shown-" + rand.Text()}
	}
	return shownIn{}
}

// readWait is for reading what was shown, after the code has ended.
const readWait = 10 * time.Second

// to passes on what was shown, and gives what the code did not catch. There is
// no file where nothing was shown.
func (s shownIn) to(ctx context.Context, c Code) *Failure {
	if s.files == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readWait)
	defer cancel()
	var b bytes.Buffer
	if _, err := s.files.ReadFile(ctx, s.name, 0, mostFrame, &b); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	s.files.Remove(ctx, s.name, true) // whatever the code has made of it
	p := piece{code: c}
	for line := range bytes.Lines(b.Bytes()) {
		var one shown
		if json.Unmarshal(line, &one) == nil {
			p.show(one)
		}
	}
	return p.failure
}
