package sandbox

import (
	"testing"

	"gatehouse/tool"
)

func TestPicturesFollowWhatTheOriginalGives(t *testing.T) {
	got, err := asOriginal(map[string]int{"exit_code": 0}, []tool.Content{tool.Text("shown"), tool.Image("image/png", []byte("PNG"))})
	want := `{"content":[{"type":"text","text":"{\n  \"exit_code\": 0\n}"},{"type":"image","data":"UE5H","mimeType":"image/png"}],"structuredContent":{"exit_code":0}}`
	if err != nil || string(got.Raw) != want {
		t.Errorf("%s, %v, want %s", got.Raw, err, want)
	}
}
