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

// resultFile is a file to which a Node writes the parts and errors of its code, one JSON object in each line. The
// code can write anything to it.
type resultFile struct {
	files sandbox.Files // nil if the driver has none
	name  string
}

func newResultFile(box sandbox.Sandbox) resultFile {
	if f, ok := box.(sandbox.Files); ok {
		return resultFile{f, "/tmp/.shown-" + rand.Text()}
	}
	return resultFile{}
}

// readWait bounds reading the file after the code has ended.
const readWait = 10 * time.Second

// to passes on the parts and returns the uncaught error. Without parts there is no file.
func (s resultFile) to(ctx context.Context, c Code) *Failure {
	if s.files == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readWait)
	defer cancel()
	var b bytes.Buffer
	if _, err := s.files.ReadFile(ctx, s.name, 0, mostFrame, &b); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	s.files.Remove(ctx, s.name, true) // the code may have made it a folder
	p := piece{code: c}
	for line := range bytes.Lines(b.Bytes()) {
		var one shown
		if json.Unmarshal(line, &one) == nil {
			p.showOutput(one)
		}
	}
	return p.failure
}
