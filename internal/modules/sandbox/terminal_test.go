package sandbox

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"gatehouse/tool"
)

// shows reads the output of a terminal until it contains a text.
func (r *reception) shows(box, process, text string) result {
	r.t.Helper()
	out, all := result{Running: true}, ""
	for until := time.Now().Add(30 * time.Second); out.Running && time.Now().Before(until); {
		out = r.do("output", args{"sandbox_id": box, "process_id": process, "since": out.Next, "wait": 5})
		if all += out.Output; strings.Contains(all, text) {
			out.Output = all
			return out
		}
	}
	r.t.Fatalf("%q is not shown in %q", text, all)
	return out
}

func TestATerminalInASandbox(t *testing.T) {
	r := open(t, Config{Settings: with(nil)})
	box := r.box()
	id := r.do("start", args{"sandbox_id": box, "command": "PS1=: exec sh", "terminal": true, "cols": 100, "rows": 30}).ProcessID
	to := args{"sandbox_id": box, "process_id": id}
	say := func(in args) {
		t.Helper()
		in["sandbox_id"], in["process_id"] = box, id
		r.do("input", in)
	}
	say(args{"text": "tty; stty size\r"})
	if got := r.shows(box, id, "30 100").Output; !strings.Contains(got, "/dev/pts/") || strings.ContainsAny(got, "\x1b\r") {
		t.Errorf("a terminal shows %q", got)
	}
	say(args{"cols": 50, "rows": 10})
	say(args{"text": "stty size\r"})
	r.shows(box, id, "10 50")
	say(args{"text": "sleep 1000; echo it ended with $?\r"})
	r.shows(box, id, "sleep 1000")
	time.Sleep(200 * time.Millisecond) // until it sleeps; earlier the shell itself would be interrupted, too
	say(args{"text": "\x03"})
	r.shows(box, id, "sleep 1000")
	if raw := r.do("output", args{"sandbox_id": box, "process_id": id, "raw": true}); !strings.Contains(raw.Output, "\r\n") {
		t.Errorf("raw output is %q", raw.Output)
	}
	if list := r.do("processes", args{"sandbox_id": box}).Processes; len(list) != 1 || !list[0].Terminal {
		t.Errorf("listed: %+v", list)
	}
	plain := r.do("start", args{"sandbox_id": box, "command": "sleep 100"}).ProcessID
	if code := r.code("input", args{"sandbox_id": box, "process_id": plain, "cols": 5, "rows": 5}); code != string(tool.CodeUnsupported) {
		t.Errorf("a size for a process without a terminal: %s", code)
	}
	if code := r.code("input", args{"sandbox_id": box, "process_id": id, "cols": 5}); code != string(tool.CodeInvalidArguments) {
		t.Errorf("half a size: %s", code)
	}
	if code := r.code("output", args{"sandbox_id": box, "process_id": id, "socket": true}); code != string(tool.CodeUnsupported) {
		t.Errorf("a WebSocket where there is none: %s", code)
	}
	r.as = "eve"
	for _, name := range []string{"input", "output"} {
		if code := r.code(name, to); code != string(tool.CodeNotFound) {
			t.Errorf("sandbox_%s by another caller: %s", name, code)
		}
	}
	r.as = "ann"
	say(args{"text": "exit 3\r"})
	end := r.shows(box, id, "exit 3")
	for end.Running {
		end = r.do("output", args{"sandbox_id": box, "process_id": id, "since": end.Next, "wait": 5})
	}
	if end.ExitCode == nil || *end.ExitCode != 3 {
		t.Errorf("it ended with %+v", end)
	}
}

// The stream of a terminal has its bytes as they are, and ends with its exit code, also when its sandbox ends.
func TestTheStreamOfATerminal(t *testing.T) {
	var serve func(context.Context, func(bool, []byte) error) error
	r := open(t, Config{Settings: with(nil), Stream: func(
		c tool.Caller, f func(context.Context, func(bool, []byte) error) error,
	) (string, error) {
		if c.Owner != "ann" {
			t.Errorf("the stream is %q's", c.Owner)
		}
		serve = f
		return "/ws?ticket=one", nil
	}})
	box := r.box()
	id := r.do("start", args{"sandbox_id": box, "command": "printf 'a\\033[1mb\\n'; sleep 1000", "terminal": true}).ProcessID
	if got := r.do("output", args{"sandbox_id": box, "process_id": id, "socket": true}); got.Socket != "/ws?ticket=one" || !got.Running {
		t.Errorf("%+v", got)
	}
	ended := make(chan error, 1)
	var bytes []byte
	var events []streamEvent
	shown := make(chan struct{}, 100)
	go func() {
		ended <- serve(t.Context(), func(text bool, message []byte) error {
			if text {
				var e streamEvent
				err := json.Unmarshal(message, &e)
				events = append(events, e)
				return err
			}
			bytes = append(bytes, message...)
			shown <- struct{}{}
			return nil
		})
	}()
	<-shown
	r.do("destroy", args{"sandbox_id": box})
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(string(bytes), "a\x1b[1mb\r\n") {
		t.Errorf("the bytes are %q", bytes)
	}
	if len(events) != 1 || events[0].ExitCode == nil || *events[0].ExitCode != -1 {
		t.Errorf("the events are %+v", events)
	}
}
