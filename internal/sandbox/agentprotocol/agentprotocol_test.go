package agentprotocol

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"testing"
)

func TestFramesComeOutAsTheyWentIn(t *testing.T) {
	want := []Frame{
		{Ping, 1, []byte("are you there")},
		{Stdin, 7, []byte{}},
		{Stdout, 1<<32 - 1, bytes.Repeat([]byte{0xff}, MaxBody)},
		{Exit, 7, ExitStatus{Code: 3}.Body()},
	}
	var pipe bytes.Buffer
	for _, f := range want {
		if err := Write(&pipe, f); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range want {
		got, err := Read(&pipe)
		if err != nil || got.Kind != f.Kind || got.ID != f.ID || !bytes.Equal(got.Body, f.Body) {
			t.Errorf("got %v %v, want kind %d of request %d", got.Kind, err, f.Kind, f.ID)
		}
	}
	if _, err := Read(&pipe); err != io.EOF {
		t.Errorf("after the last frame: %v, want EOF", err)
	}
}

func TestWhatIsNoFrameBreaksTheChannel(t *testing.T) {
	head := func(kind byte, id, size uint32) []byte {
		b := binary.BigEndian.AppendUint32([]byte{kind}, id)
		return append(binary.BigEndian.AppendUint32(b, size), make([]byte, min(size, 64))...)
	}
	for name, b := range map[string][]byte{
		"no kind":                 head(0, 1, 0),
		"an unknown kind":         head(byte(afterKinds), 1, 0),
		"no request":              head(byte(Ping), 0, 0),
		"a lying length":          head(byte(Stdout), 1, 1<<32-1),
		"one byte too many":       head(byte(Stdout), 1, MaxBody+1),
		"a signal of three bytes": head(byte(Signal), 1, 3),
		"an exit without status":  head(byte(Exit), 1, 0),
	} {
		if _, err := Read(bytes.NewReader(b)); !errors.Is(err, ErrBroken) {
			t.Errorf("%s: %v, want ErrBroken", name, err)
		}
	}
	if _, err := Read(bytes.NewReader(head(byte(Ping), 1, 40)[:20])); err != io.ErrUnexpectedEOF {
		t.Errorf("half a frame: %v", err)
	}
}

func TestAnExitStatusNoKernelGivesIsRefused(t *testing.T) {
	for _, e := range []ExitStatus{{}, {Code: 255, CPU: 3, MaxRSS: 1 << 40}, {Signal: 9}, {Signal: 64}} {
		if got, err := ParseExitStatus(e.Body()); err != nil || got != e {
			t.Errorf("%+v came back as %+v, %v", e, got, err)
		}
	}
	for _, e := range []ExitStatus{{Code: 1, Signal: 9}, {Signal: 65}, {CPU: -1}, {MaxRSS: -1}} {
		if _, err := ParseExitStatus(e.Body()); !errors.Is(err, ErrBroken) {
			t.Errorf("%+v: %v, want ErrBroken", e, err)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte{byte(Ping), 0, 0, 0, 1, 0, 0, 0, 1, 'x'})
	f.Add(append([]byte{byte(Exit), 0, 0, 0, 1, 0, 0, 0, exitStatusSize}, ExitStatus{Signal: 9}.Body()...))
	f.Add([]byte{byte(Stdout), 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		frame, err := Read(bytes.NewReader(b))
		if err != nil {
			return
		}
		var again bytes.Buffer
		if err := Write(&again, frame); err != nil {
			t.Fatal(err)
		}
		if !bytes.HasPrefix(b, again.Bytes()) {
			t.Errorf("%x was read from %x", again.Bytes(), b)
		}
		if frame.Kind == Exit {
			ParseExitStatus(frame.Body)
		}
	})
}
