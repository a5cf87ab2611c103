package notify

import (
	"encoding/json"
	"testing"

	"gatehouse/module"
	"gatehouse/module/moduletest"
)

func TestNewsIsPublishedAsAFact(t *testing.T) {
	host := moduletest.NewHost(t)
	told := Notification{Code: "bell.rung", Level: Warning, Title: "The bell rang", Message: "Twice."}
	Publish(host.Deps(), told)
	facts := host.Facts()
	if len(facts) != 1 || facts[0].Subject != Subject {
		t.Fatalf("published %v", facts)
	}
	var heard Notification
	if err := json.Unmarshal([]byte(facts[0].Data), &heard); err != nil || heard.Title != told.Title ||
		heard.Level != told.Level ||
		heard.Code != told.Code ||
		heard.Message != told.Message {
		t.Errorf("told %+v, heard %+v, %v", told, heard, err)
	}
}

func TestAHostNeedNotListen(t *testing.T) {
	Publish(module.Deps{}, Notification{Title: "The bell rang"})
}
