package code

import (
	"context"
	"slices"
	"testing"
	"time"

	"gatehouse/module"
	"gatehouse/tool"
)

// Two hosts share a folder: what one saves or removes is offered by the other without a restart.
func TestAnotherHostOffersWhatIsSaved(t *testing.T) {
	dir := t.TempDir() + "/code"
	changed := make(chan struct{}, 100)
	open := func() *programs {
		m, err := New(Config{Folder: dir})(t.Context(), module.Deps{
			Changed: func(module.Audience) { changed <- struct{}{} },
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close(context.Background()) })
		return m.(*programs)
	}
	one, two := open(), open()
	offered := func() bool {
		o, err := two.Offer(t.Context(), module.Audience{Context: "lab"})
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(o.Tools, func(d tool.Tool) bool { return d.Name == "code_add" })
	}
	for _, want := range []bool{true, false, true} {
		err := one.saved.change(t.Context(), func([]savedProgram) ([]savedProgram, error) {
			if !want {
				return nil, nil
			}
			return []savedProgram{{Context: "lab", Name: "add", Language: "python", Code: "print(1)"}}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		for end := time.After(time.Minute); offered() != want; {
			select {
			case <-changed:
			case <-end:
				t.Fatalf("the other host offers the program: %v, want %v", !want, want)
			}
		}
	}
}
