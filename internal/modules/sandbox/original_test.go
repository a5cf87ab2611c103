package sandbox

import (
	"strings"
	"testing"

	"gatehouse/internal/sandbox"
	"gatehouse/tool"
)

func TestPicturesFollowWhatTheOriginalGives(t *testing.T) {
	got, err := asOriginal(map[string]int{"exit_code": 0},
		[]tool.Content{tool.Text("shown"), tool.Image("image/png", []byte("PNG"))})
	want := `{"content":[{"type":"text","text":"{\n  \"exit_code\": 0\n}"},{"type":"image","data":"UE5H","mimeType":"image/png"}],"structuredContent":{"exit_code":0}}`
	if err != nil || string(got.Raw) != want {
		t.Errorf("%s, %v, want %s", got.Raw, err, want)
	}
}

// An answer in the shape of the original says why code ended that did not end
// by itself.
func TestTheOriginalsAnswerSaysWhyItEnded(t *testing.T) {
	for outcome, want := range map[sandbox.Outcome]string{
		sandbox.OK: "err", sandbox.Failed: "err",
		sandbox.Signalled: "signal (9)", sandbox.TimedOut: "time was up", sandbox.OutOfMemory: "out of memory",
		sandbox.OutputLimit: "printed more", sandbox.Lost: "was lost",
	} {
		o := ranOut{ExitCode: -1, Outcome: string(outcome), Stderr: "err", Took: 12}
		if outcome == sandbox.Signalled {
			o.Signal = 9
		}
		got := withReason(o)
		if ended := outcome != sandbox.OK && outcome != sandbox.Failed; !strings.Contains(got, want) ||
			ended != strings.HasPrefix(got, "err\n[ended after 12 ms: ") {
			t.Errorf("%s: %q", outcome, got)
		}
	}
}
