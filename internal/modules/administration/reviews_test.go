package administration

import (
	"testing"

	"gatehouse/internal/files/stage"
)

// What a commit creates below .git/objects is one group; everything else in .git is shown by itself, because hooks and
// settings in it are run by git, and so is an object that was changed.
func TestNewGitObjectsAreAGroup(t *testing.T) {
	file, none := stage.State{Type: stage.File}, stage.State{Type: stage.None}
	for _, of := range []struct {
		change stage.Change
		want   string
	}{
		{stage.Change{Path: "/p/.git/objects/3b/eb93", Was: none, Now: file}, "/p/.git/objects/"},
		{stage.Change{Path: "/p/.git/modules/m/.git/objects/3b", Was: none, Now: file}, "/p/.git/modules/m/.git/objects/"},
		{stage.Change{Path: "/p/.git/objects/3b/eb93", Was: file, Now: file}, ""},
		{stage.Change{Path: "/p/.git/objects/3b/eb93", Was: file, Now: none}, ""},
		{stage.Change{Path: "/p/.git/objects/3b/eb93", Was: none, Now: file, Conflict: "there is one now"}, ""},
		{stage.Change{Path: "/p/.git/hooks/post-commit", Was: none, Now: file}, ""},
		{stage.Change{Path: "/p/objects/3b", Was: none, Now: file}, ""},
	} {
		if got := gitObjects(of.change); got != of.want {
			t.Errorf("%s: group %q, want %q", of.change.Path, got, of.want)
		}
	}
}
