package main

import (
	"bufio"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const firstAnswer = 15 * time.Millisecond // from the start of a process

// The first answer comes soon after the start of a process. How soon depends on what else the machine does, so that
// only the long form holds the limit, and of the fastest of its starts.
func TestTheFirstAnswer(t *testing.T) {
	file := filepath.Join(released(t, newRelease), "gatehouse-"+newVersion+"-"+here.String())
	home := t.TempDir()
	var all []time.Duration
	for range 30 {
		cmd := exec.Command(file, "serve", "-d", home)
		cmd.Env = []string{"HOME=" + home}
		in, err := cmd.StdinPipe()
		out, err2 := cmd.StdoutPipe()
		if err := errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		_, err = io.WriteString(in, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18",`+
			`"capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`+"\n")
		line, err2 := bufio.NewReader(out).ReadString('\n')
		all = append(all, time.Since(began))
		if err := errors.Join(err, err2); err != nil || !strings.Contains(line, newVersion) {
			t.Errorf("the first answer is %q: %v", line, err)
		}
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}
	slices.Sort(all)
	t.Logf("the first answer came after %v, the fastest, and %v, the median", all[0], all[len(all)/2])
	if os.Getenv("GATEHOUSE_TEST_ALL") != "" && all[0] > firstAnswer {
		t.Errorf("it came after %v, at most %v", all[0], firstAnswer)
	}
}
